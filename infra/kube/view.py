"""A live view of pods and budgets: two shared watches feed it, and one thread reads it.

No request is made per pod. Work that other threads finish is put on the same queue (`post`), so the owner of the view
waits in one place for everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Any, Self

from infra.errors import PoolshiftError, Unreachable
from infra.kube.api import Kube
from infra.kube.read import BUDGETS, PODS
from infra.kube.watch import SILENCE, Broken, Changed, Lost, Resumed, Synced, Watch, Went
from infra.kube.wire import budget as read_budget
from infra.kube.wire import pod as read_pod
from infra.model.workload import Budget, Pod

_EVENT = tuple(b'{"type":"%s","object":{"kind":"Pod",' % kind for kind in (b"ADDED", b"MODIFIED", b"DELETED"))
_NODE = b'"nodeName"'
_NAME = re.compile(rb'"nodeName":"([^"\\]*)"')
# As the API server writes it: in a name there is no quote, so the UID is the pod's own.
_END = re.compile(
    rb'\{"type":"DELETED","object":\{"kind":"Pod","apiVersion":"v1","metadata":\{"name":"[^"\\]+",'
    rb'(?:"generateName":"[^"\\]*",)?"namespace":"[^"\\]+","uid":"([^"\\]+)"'
)
_BURST = 4096  # events taken at once before the owner looks at its work again


@dataclass(kw_only=True, slots=True)
class News:
    """What one `pump` brought: pods and budgets that changed, pods that went, and what was posted."""

    pods: list[Pod] = field(default_factory=list)
    gone: list[Pod] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    posted: list[Any] = field(default_factory=list)
    relisted: bool = False

    def __bool__(self) -> bool:
        return bool(self.pods or self.gone or self.budgets or self.posted or self.relisted)


def of_other_nodes(nodes: Iterable[str]) -> Callable[[bytes], bool]:
    """Tells of a line of a pod watch, undecoded, whether it surely is an event of a pod on none of these nodes.

    On a busy cluster most events are of pods that nobody here waits for, and decoding is what a watch costs.
    """
    wanted = frozenset(name.encode() for name in nodes)

    def skips(line: bytes) -> bool:
        if not line.startswith(_EVENT):
            return False
        # Within a string a quote is escaped, so this is a key or a whole string; where there are two, who knows.
        at = line.find(_NODE)
        if at < 0:
            return True  # not bound yet
        found = _NAME.match(line, at)
        return found is not None and line.find(_NODE, found.end()) < 0 and found[1] not in wanted

    return skips


def end_of(line: bytes) -> str:
    """The UID of the pod whose end a line of a pod watch surely tells, undecoded, or ""."""
    found = _END.match(line)
    return found[1].decode() if found else ""


class View:
    """Pods by UID and node, budgets by key. Only the thread that pumps may read it.

    With `nodes`, only pods on these are followed: all others stay as they were when last listed.
    """

    def __init__(self, kube: Kube, *, nodes: Iterable[str] | None = None, silence: float = SILENCE) -> None:
        self.pods: dict[str, Pod] = {}
        self.on_node: dict[str, set[str]] = {}
        self.budgets: dict[str, Budget] = {}
        self._lost: dict[int, PoolshiftError] = {}
        self.queue: SimpleQueue[Any] = SimpleQueue()
        skips = None if nodes is None else of_other_nodes(nodes)
        self._pods = Watch(kube, PODS, read_pod, self.queue, silence=silence, skips=skips, went=end_of)
        self._budgets = Watch(kube, BUDGETS, read_budget, self.queue, silence=silence)
        self._synced: set[int] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def lost(self) -> PoolshiftError | None:
        """Why what the view shows may be old, or None."""
        return next(iter(self._lost.values()), None)

    def start(self, timeout: float = 60.0) -> None:
        """Begin, and return when both collections were read once.

        Raises:
            Forbidden, Unreachable: a collection cannot be read (the watch's own error), or no page of it came in
                `timeout` wall-clock seconds.

        """
        self._pods.start()
        self._budgets.start()
        try:
            self._await_first(timeout)
        except BaseException:  # a Ctrl-C too
            self.stop()
            raise

    def _await_first(self, timeout: float) -> None:
        end, pages = monotonic() + timeout, 0
        while len(self._synced) < 2:
            self.pump(0.5)
            if pages != (pages := self._pods.pages + self._budgets.pages):
                end = monotonic() + timeout
            if len(self._synced) < 2 and (monotonic() > end or (self.lost and not isinstance(self.lost, Unreachable))):
                raise self.lost or Unreachable("Kubernetes API", f"pods and budgets: no page listed in {timeout:.0f} s")

    def stop(self) -> None:
        """End both watches."""
        self._pods.stop()
        self._budgets.stop()

    def relist(self) -> None:
        """Read both collections anew: the watches are suspected of silence."""
        self._pods.relist()
        self._budgets.relist()

    def post(self, item: object) -> None:
        """From any thread: hand something to whoever pumps."""
        self.queue.put(item)

    def pump(self, timeout: float) -> News:
        """Wait up to `timeout` wall-clock seconds for something, then take all that is there.

        Raises PoolshiftError when a watch has ended by a fault of our own.
        """
        news = News()
        try:
            item = self.queue.get(timeout=timeout) if timeout > 0 else self.queue.get_nowait()
            for _ in range(_BURST):
                self._take(item, news)
                item = self.queue.get_nowait()
            self._take(item, news)
        except Empty:
            pass
        return news

    def rest(self, seconds: float) -> None:
        """Pump for so many wall-clock seconds, however much comes in: for those who look now and then."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            self.pump(left)

    def _take(self, item: object, news: News) -> None:
        if isinstance(item, Changed):
            if item.watch is self._pods:
                self._pod(item.object, item.gone, news)
            else:
                self._budget(item.object, item.gone, news)
        elif isinstance(item, Went):
            if item.uid in self.pods:  # else it is not followed, or known to be gone
                self._pod(self.pods[item.uid], True, news)
        elif isinstance(item, Synced):
            self._sync(item, news)
        elif isinstance(item, Lost):
            self._lost[id(item.watch)] = item.error
        elif isinstance(item, Resumed):
            self._lost.pop(id(item.watch), None)
        elif isinstance(item, Broken):
            raise item.error
        else:
            news.posted.append(item)

    def _sync(self, item: Synced[Any], news: News) -> None:
        self._synced.add(id(item.watch))
        self._lost.pop(id(item.watch), None)
        news.relisted = True
        if item.watch is self._pods:
            present = {p.uid for p in item.objects}
            for pod in [p for uid, p in self.pods.items() if uid not in present]:
                self._pod(pod, True, news)
            for pod in item.objects:
                self._pod(pod, False, news)
        else:
            present = {b.key for b in item.objects}
            for budget in [b for key, b in self.budgets.items() if key not in present]:
                self._budget(budget, True, news)
            for budget in item.objects:
                self._budget(budget, False, news)

    def _pod(self, pod: Pod, gone: bool, news: News) -> None:
        old = self.pods.get(pod.uid)
        if old is not None and (gone or old.node != pod.node):
            self.on_node.get(old.node, set()).discard(pod.uid)
        if gone:
            self.pods.pop(pod.uid, None)
            news.gone.append(pod)
            return
        self.pods[pod.uid] = pod
        self.on_node.setdefault(pod.node, set()).add(pod.uid)
        news.pods.append(pod)

    def _budget(self, budget: Budget, gone: bool, news: News) -> None:
        if gone:
            self.budgets.pop(budget.key, None)
        else:
            self.budgets[budget.key] = budget
        news.budgets.append(budget)
