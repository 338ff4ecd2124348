"""One list and watch of a collection, kept alive: bookmarks, 410, cut and silent connections.

A watch runs in a thread of its own and puts what it sees, already converted, on a queue; whoever reads the queue owns
the state. After every listing comes one `Synced` with all objects, so a reader that was behind is right again.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import Any, Generic, TypeVar

import orjson

from infra.errors import PoolshiftError, Unreachable
from infra.kube.api import PAGE, Kube
from infra.kube.lines import Lines, Stream
from infra.kube.refusals import ApiError, translate
from infra.kube.wire import Shared, Wire

T = TypeVar("T")
SILENCE = 60.0  # wall-clock seconds without a byte after which a connection is taken for dead
LASTED = 1.0  # wall-clock seconds: a connection that ended sooner, and brought nothing, is no better than none
BACKOFF = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)  # wall-clock seconds between tries to connect


@dataclass(frozen=True, slots=True)
class Synced(Generic[T]):
    """A full listing: what is not in it is gone."""

    watch: Watch[T]
    objects: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """One event. `gone` for DELETED."""

    watch: Watch[T]
    object: T
    gone: bool


@dataclass(frozen=True, slots=True)
class Went(Generic[T]):
    """A DELETED event of which no more than this was read."""

    watch: Watch[T]
    uid: str


@dataclass(frozen=True, slots=True)
class Lost(Generic[T]):
    """No view of the collection at the moment; the watch goes on trying."""

    watch: Watch[T]
    error: PoolshiftError


@dataclass(frozen=True, slots=True)
class Resumed(Generic[T]):
    """The watch is connected (again)."""

    watch: Watch[T]


@dataclass(frozen=True, slots=True)
class Broken(Generic[T]):
    """A fault of our own has ended the watch: what follows will never come."""

    watch: Watch[T]
    error: PoolshiftError


class _Fault(Exception):
    """An object that our own reader fails on. Not a cut connection: resumed from before it, it would come again."""


class _Expired(Exception):
    """410: the version to resume from is too old."""


class Watch(Generic[T]):
    """Lists and follows one collection until `stop`."""

    def __init__(
        self,
        kube: Kube,
        path: str,
        convert: Callable[[Wire, Shared], T],
        queue: SimpleQueue[Any],
        *,
        params: Mapping[str, Any] | None = None,
        silence: float = SILENCE,
        skips: Callable[[bytes], bool] | None = None,
        went: Callable[[bytes], str] | None = None,
    ) -> None:
        """Both are asked for each line as it came, and save its decoding: `skips`, whether it surely is of no interest;
        `went`, the UID of the object where it surely is its end, else "".
        """
        self.path = path
        self._kube, self._lines = kube, Lines(kube)
        self._convert = convert
        self._queue = queue
        self._params = dict(params or {})
        self._silence = silence
        self._skips, self._went = skips, went
        self._skipped = b""
        self._stopping = threading.Event()
        self._relist = threading.Event()
        self.pages = 0  # of all listings so far: whether one that takes long goes on
        self._response: Stream | None = None
        self._version = ""
        self._heard = False  # of the connection at hand
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)

    def start(self) -> None:
        """Begin; the first thing on the queue is `Synced`, or `Lost`."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection and the thread."""
        self._stopping.set()
        self._cut()
        self._thread.join(timeout=10)

    def relist(self) -> None:
        """Distrust the connection: cut it and list anew."""
        self._relist.set()
        self._cut()

    def _cut(self) -> None:
        response = self._response
        if response is not None:
            try:
                response.shutdown()
            except (OSError, ValueError, RuntimeError):
                pass  # already closed by the other side, or not yet reading

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._relist.clear()
                version = self._list()
                failures = 0
                while not self._stopping.is_set() and not self._relist.is_set():
                    version, alive = self._follow(version)
                    failures = 0 if alive else failures + 1
                    if failures:
                        self._pause(failures)
            except _Expired:
                continue
            except PoolshiftError as error:
                failures += 1
                self._queue.put(Lost(self, error))
                self._pause(failures)
            except Exception as error:  # noqa: BLE001 - who waits for this watch would wait for ever
                cause = error.__cause__ or error
                said = f"cannot go on: {error if isinstance(error, _Fault) else ''}{type(cause).__name__}: {cause}"
                remedy = "report it with that object: this is a fault of poolshift"
                self._queue.put(Broken(self, PoolshiftError(f"watch of {self.path}", said, remedy=remedy)))
                return

    def _read_one(self, raw: Wire, shared: Shared) -> T:
        try:
            return self._convert(raw, shared)
        except Exception as error:
            meta = raw.get("metadata") or {}
            raise _Fault(f"{meta.get('namespace', '')}/{meta.get('name', '')} cannot be read: ") from error

    def _pause(self, failures: int) -> None:
        self._stopping.wait(BACKOFF[min(failures, len(BACKOFF)) - 1])

    def _list(self) -> str:
        shared = Shared()
        found: list[T] = []
        version = ""
        token: str | None = None
        while True:
            params = {**self._params, "limit": PAGE, "continue": token}
            page = self._kube.request("GET", self.path, params=params)
            found += [self._read_one(item, shared) for item in page.get("items") or ()]
            self.pages += 1
            meta = page.get("metadata") or {}
            version = str(meta.get("resourceVersion", ""))
            token = meta.get("continue") or None
            if token is None:
                self._queue.put(Synced(self, tuple(found)))
                return version

    def _follow(self, version: str) -> tuple[str, bool]:
        """Watch from a version until the connection ends. Returns (version to go on from, was it of any use)."""
        import urllib3

        params = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            # The server ends the watch before we would call it silent, so silence means death.
            "timeoutSeconds": max(1, int(self._silence * 0.8)),
        }
        try:
            response = self._lines.stream(self.path, params, connect=10.0, silence=self._silence)
        except Unreachable as error:
            self._queue.put(Lost(self, error))
            return version, False
        self._response, self._version, self._heard = response, version, False
        began = monotonic()
        try:
            if self._stopping.is_set() or self._relist.is_set():
                return version, True  # asked while we connected, when there was nothing to cut
            if response.status == 410:
                raise _Expired
            if response.status != 200:
                refusal = translate("GET", self.path, response.status, response.read(), None)
                if not isinstance(refusal, Unreachable):
                    raise refusal
                self._queue.put(Lost(self, refusal))
                return version, False
            self._queue.put(Resumed(self))
            self._read(response)
        except (http.client.HTTPException, urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            pass  # cut; what came before it counts
        finally:
            self._response = None
            response.close()
        return self._place(), self._heard or monotonic() - began > LASTED

    def _read(self, response: Stream) -> None:
        shared = Shared()
        for line in _lines(response):
            if self._stopping.is_set() or self._relist.is_set():
                break
            if self._skips is not None and self._skips(line):
                self._skipped, self._heard = line, True
                continue
            if self._went is not None and (uid := self._went(line)):
                self._skipped, self._heard = line, True
                self._queue.put(Went(self, uid))
                continue
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                break  # a line torn by a dying connection: resume from the last whole one
            kind, raw = event.get("type"), event.get("object") or {}
            self._heard = self._heard or bool(kind)  # else it is no watch that answers
            if kind == "ERROR":
                self._raise(raw)
            self._version, self._skipped = _version_of(raw) or self._version, b""
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                self._queue.put(Changed(self, self._read_one(raw, shared), kind == "DELETED"))

    def _place(self) -> str:
        """The version to go on from; a line that was not decoded is read for it only now."""
        skipped, self._skipped = self._skipped, b""
        if skipped:
            try:
                self._version = _version_of(orjson.loads(skipped).get("object") or {}) or self._version
            except orjson.JSONDecodeError:
                pass  # torn: go on from the last line that was read, which only brings skipped ones again
        return self._version

    def _raise(self, status: Wire) -> None:
        if status.get("code") == 410:
            raise _Expired
        raise ApiError(f"watch of {self.path}", f"{status.get('code')} {status.get('message')}")


def _version_of(raw: Wire) -> str:
    return str((raw.get("metadata") or {}).get("resourceVersion") or "")


def _lines(response: Stream) -> Iterator[bytes]:
    """Whole lines as soon as they are there. (The client's own line iterator waits for 64 KiB where a proxy between
    sends no chunks.)
    """
    rest = b""
    while piece := response.read1(65536):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest
