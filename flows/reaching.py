"""The cluster that the command line named, put into the commands that it is told to type next.

Without it they would speak to another cluster, or to none: what was given once need not be remembered by a person.
"""

from __future__ import annotations

import re
import shlex

from tasks import progress

_DEFAULT_NAMESPACE = "poolshift"
_OF_RUN = "approve|pause|resume|cancel|status|report|rollback"
_OTHERS = "plan|migrate|revalidate|audit|drain"
# A verb or an option behind it tells a command from a mention of kubectl's flags.
_KUBECTL = re.compile(
    r"\bkubectl (?!--kubeconfig\b)(?=(-|annotate|apply|auth|config|cordon|delete|describe|edit|get|label|logs|patch|"
    r"rollout|scale|set|taint|uncordon)\b|--?\w)"
)
_POOLSHIFT = re.compile(rf"\bpoolshift ({_OF_RUN}|{_OTHERS})\b(?![^;,\n]*--(kubeconfig|context)\b)")

# A spec's place in a command, where the command line has named the file.
_SPEC = re.compile(r"(\bpoolshift (?:plan|migrate|rollback|revalidate)\b[^;,:\n]*?) SPEC\b")

_spec: list[str] = []
_options: list[str] = []
_namespace: list[str] = []


def remember(kubeconfig: str | None, context: str | None, namespace: str = _DEFAULT_NAMESPACE) -> None:
    """How this command line reaches its cluster; nothing where it goes by what the shell has anyway."""
    _options[:] = [*(["--kubeconfig", kubeconfig] if kubeconfig else []), *(["--context", context] if context else [])]
    _namespace[:] = ["--namespace", namespace] if namespace != _DEFAULT_NAMESPACE else []

    progress.reword(complete)


def remember_spec(path: str) -> None:
    """The spec file that this command line was given; "-", standard input, cannot be given again."""
    _spec[:] = [shlex.quote(path)] if path != "-" else []


def forget() -> None:
    """Before another command line."""
    remember(None, None)
    _spec.clear()
    progress.reword(None)


def complete(text: str) -> str:
    """The text with the cluster in each command that asks one, and the spec; a command that names its own keeps it."""
    if _spec:
        text = _SPEC.sub(lambda match: f"{match[1]} {_spec[0]}", text)
    if _options:
        text = _KUBECTL.sub(lambda match: f"kubectl {_of_kubectl(text[match.end() :])}", text)
    return _POOLSHIFT.sub(_of_poolshift, text) if _options or _namespace else text


def _of_kubectl(rest: str) -> str:
    named = rest.startswith("--context ") and "--context" in _options
    given = _options[: _options.index("--context")] if named else _options
    return f"{shlex.join(given)} " if given else ""


def _of_poolshift(match: re.Match[str]) -> str:
    given = [*_options, *(_namespace if re.fullmatch(_OF_RUN, match[1]) else [])]
    return " ".join([match[0], shlex.join(given)]).rstrip()
