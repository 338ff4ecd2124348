"""The cluster that the command line named, put into the commands that it is told to type next.

Without it they would speak to another cluster, or to none: what was given once need not be remembered by a person.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

_DEFAULT_NAMESPACE = "poolshift"
_OF_RUN = "approve|pause|resume|cancel|status|report|rollback"
_OTHERS = "plan|migrate|revalidate|audit|drain"
# A verb or an option behind it tells a command from a mention of kubectl's flags.
_KUBECTL = re.compile(
    r"\bkubectl (?!--kubeconfig\b)(?=(-|annotate|apply|auth|config|cordon|delete|describe|edit|get|label|logs|patch|"
    r"rollout|scale|set|taint|uncordon)\b|--?\w)"
)
_POOLSHIFT = re.compile(rf"\bpoolshift ({_OF_RUN}|{_OTHERS})\b(?![^;,\n]*--(kubeconfig|context|namespace)\b)")

# A spec's place in a command, where the command line has named the file.
_SPEC = re.compile(r"(\bpoolshift (?:plan|migrate|rollback|revalidate)\b[^;,:\n]*?) SPEC\b")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a command line reaches its cluster, and its spec file; None where it goes by what the shell has anyway."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str = _DEFAULT_NAMESPACE
    spec: str | None = None
    """"-", standard input, cannot be given again."""

    def complete(self, text: str) -> str:
        """The text with the cluster in each command that asks one, and the spec; a command that names its own keeps it.

        What is complete already stays as it is.
        """
        if self.spec and self.spec != "-":
            path = shlex.quote(self.spec)
            text = _SPEC.sub(lambda match: f"{match[1]} {path}", text)
        if self.kubeconfig or self.context:
            text = _KUBECTL.sub(lambda match: f"kubectl {self._of_kubectl(text[match.end() :])}", text)
        elif self.namespace == _DEFAULT_NAMESPACE:
            return text
        return _POOLSHIFT.sub(self._of_poolshift, text)

    def _of_kubectl(self, rest: str) -> str:
        given = self._options(None if rest.startswith("--context ") else self.context)
        return f"{shlex.join(given)} " if given else ""

    def _of_poolshift(self, match: re.Match[str]) -> str:
        ours = self.namespace != _DEFAULT_NAMESPACE and re.fullmatch(_OF_RUN, match[1])
        given = [*self._options(self.context), *(["--namespace", self.namespace] if ours else [])]
        return " ".join([match[0], shlex.join(given)]).rstrip()

    def _options(self, context: str | None) -> list[str]:
        named = {"--kubeconfig": self.kubeconfig, "--context": context}
        return [word for name, value in named.items() if value for word in (name, value)]
