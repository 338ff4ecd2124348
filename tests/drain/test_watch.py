"""The shared watch against servers that misbehave on purpose: scripted answers on a real socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.errors import PoolshiftError
from infra.kube.lines import Lines
from infra.kube.view import View, end_of, of_other_nodes
from infra.kube.watch import Broken, Changed, Lost, Resumed, Synced, Watch, Went
from infra.kube.wire import pod as read_pod
from infra.model.workload import Pod


def pod(name, version, kind="ADDED"):
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}


def bound(node, kind="MODIFIED", **meta):
    event = {"type": kind, "object": {"kind": "Pod", "metadata": {"name": "p", **meta}, "spec": {"nodeName": node}}}
    if node is None:
        del event["object"]["spec"]["nodeName"]
    return json.dumps(event, separators=(",", ":")).encode()


class Script:
    """Answers lists from `lists` and watches from `watches`, in turn; the last of each is repeated.

    A watch is a list of events, then what happens: "end", "hang" (silence; still open) or "tear" (half a line).
    `before_answer` is called when one is asked for, before anything is sent.
    """

    def __init__(self, lists, watches, before_answer):
        self.lists, self.watches, self.before_answer = lists, watches, before_answer
        self.seen, self.over = [], threading.Event()
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                query = parse_qs(urlsplit(self.path).query)
                if "watch" in query:
                    script.seen.append(query["resourceVersion"][0])
                    script.before_answer()
                self.send_response(200)
                self.end_headers()
                if "watch" not in query:
                    names, version = script.take(script.lists)
                    items = [{"metadata": {"name": n, "resourceVersion": version}} for n in names]
                    listed = {"kind": "PodList", "metadata": {"resourceVersion": version}, "items": items}
                    self.wfile.write(json.dumps(listed).encode())
                    return
                events, then = script.take(script.watches)
                for event in events:
                    self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()
                if then == "hang":
                    script.over.wait(20)
                elif then == "tear":
                    self.wfile.write(b'{"type": "ADDED", "object": {"meta')

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @staticmethod
    def take(answers):
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def follow(kube_at):
    """Watch a scripted server; returns (script, next item)."""
    open_ = []

    def start(
        lists,
        watches,
        silence=10.0,
        skips=None,
        went=None,
        convert=lambda raw, _: raw["metadata"]["name"],
        before_answer=lambda: None,
    ):
        script = Script(lists, watches, before_answer)
        thread = threading.Thread(target=script.server.serve_forever, args=(0.02,))
        thread.start()
        queue = SimpleQueue()
        watch = Watch(
            kube_at(script.url),
            "/api/v1/pods",
            convert,
            queue,
            silence=silence,
            skips=skips,
            went=went,
        )
        script.watch = watch
        watch.start()
        open_.append((watch, script, thread))
        return script, lambda: queue.get(timeout=8)

    yield start
    for watch, script, thread in open_:
        script.over.set()
        watch.stop()
        script.server.shutdown()
        thread.join()
        script.server.server_close()


def until(get, kind):
    """The next item of a kind; `Resumed` and the like are passed over."""
    while not isinstance(item := get(), kind):
        pass
    return item


def test_what_is_listed_comes_first_and_changes_follow(follow):
    _, get = follow([(["a", "b"], "5")], [([pod("c", "6"), pod("a", "7", "DELETED")], "hang")])
    assert until(get, Synced).objects == ("a", "b")
    first, second = until(get, Changed), until(get, Changed)
    assert [(first.object, first.gone), (second.object, second.gone)] == [("c", False), ("a", True)]


def test_a_cut_connection_is_resumed_from_the_last_event_without_a_listing(follow):
    script, get = follow([(["a"], "5")], [([pod("b", "6")], "end"), ([pod("c", "7")], "hang")])
    assert until(get, Changed).object == "b"
    assert until(get, Changed).object == "c"
    assert script.seen[:2] == ["5", "6"]


def test_what_is_skipped_is_not_told_and_still_moves_the_place_to_resume_from(follow):
    script, get = follow(
        [([], "5")],
        [([pod("b", "6"), pod("other", "7")], "end"), ([pod("other", "8")], "tear"), ([pod("c", "9")], "hang")],
        skips=lambda line: b'"other"' in line,
    )
    assert [until(get, Changed).object, until(get, Changed).object] == ["b", "c"]
    assert script.seen[:3] == ["5", "7", "8"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_stream_reads_the_same_however_its_frames_arrive(kube_at, size):
    body = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in (b"one\r\n", b"2" * 300, b"\n", b"0\r\n"))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            peer, _ = server.accept()
            # The reader knows the end and closes: with the last line end unread, that is a reset.
            with peer, contextlib.suppress(ConnectionError):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                whole = body + b"0\r\n\r\n"
                for at in range(0, len(whole), size):
                    peer.sendall(whole[at : at + size])
                peer.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        stream = Lines(kube_at(f"http://127.0.0.1:{server.getsockname()[1]}")).stream("/x", {}, connect=5, silence=5)
        read = b"".join(iter(lambda: stream.read1(100), b""))
        stream.close()
        thread.join()
    assert read == b"one\r\n" + b"2" * 300 + b"\n0\r\n"


@pytest.mark.parametrize(
    ("line", "skipped"),
    [
        (bound("n1"), False),
        (bound("n2"), True),
        (bound("n1", kind="DELETED"), False),
        (bound(None), True),
        (bound("n2", labels={"nodeName": "n1"}), False),  # which of the two is it?
        (bound("n2", annotations={"x": '{"nodeName":"n1"}'}), True),
        (bound("n2", annotations={"x": "nodeName"}), False),
        (bound("n1", annotations={"x": '"nodeName":"n2"'}), False),
        (bound("n2").replace(b'":"', b'": "'), False),  # written in another way: let it be read
        (b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"9"}}}', False),
        (b'{"type":"ERROR","object":{"kind":"Status","code":410}}', False),
        (b"", False),
    ],
)
def test_only_what_surely_is_a_pod_of_another_node_is_left_unread(line, skipped):
    assert of_other_nodes(["n1"])(line) is skipped


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ({"spec": {"priority": "high"}}, "ValueError"),
        ({"spec": {"volumes": 5}}, "TypeError"),
        ({"spec": "none"}, "AttributeError"),
    ],
)
def test_an_object_that_our_reader_fails_on_ends_the_watch_loudly_instead_of_being_met_for_ever(follow, odd, error):
    event = {"type": "ADDED", "object": {"metadata": {"name": "odd", "namespace": "x", "resourceVersion": "6"}, **odd}}
    _, get = follow([([], "5")], [([event], "hang")], convert=read_pod)
    assert f"x/odd cannot be read: {error}" in until(get, Broken).error.observed


def test_a_broken_watch_ends_whoever_pumps(kube_at):
    view = View(kube_at("http://127.0.0.1:9"))
    view.post(Broken(view._pods, PoolshiftError("watch of pods", "cannot go on")))
    with pytest.raises(PoolshiftError, match="cannot go on"):
        view.pump(0)


def test_a_view_that_cannot_begin_leaves_no_watch_behind(kube_at):
    view = View(kube_at("http://127.0.0.1:9"))
    view.post(Broken(view._pods, PoolshiftError("watch of pods", "cannot go on")))
    with pytest.raises(PoolshiftError, match="cannot go on"):
        view.start()
    assert not [each for each in threading.enumerate() if each.name.startswith("watch /")]


def test_a_bookmark_moves_the_place_to_resume_from(follow):
    script, get = follow([([], "5")], [([pod("", "90", "BOOKMARK")], "end"), ([pod("c", "91")], "hang")])
    assert until(get, Changed).object == "c"
    assert script.seen[:2] == ["5", "90"]


def test_a_torn_line_is_no_event(follow):
    script, get = follow([([], "5")], [([pod("b", "6")], "tear"), ([pod("c", "7")], "hang")])
    assert [until(get, Changed).object, until(get, Changed).object] == ["b", "c"]
    assert script.seen[:2] == ["5", "6"]


def test_an_end_is_told_without_decoding_and_the_watch_goes_on_from_there(follow):
    def convert(raw, _):
        assert raw["metadata"]["name"] != "b", "decoded"
        return raw["metadata"]["name"]

    ended = [pod("a", "6"), pod("b", "9", "DELETED")]
    went = lambda line: "of b" if b"DELETED" in line else ""  # noqa: E731
    script, get = follow([([], "5")], [(ended, "end"), ([pod("c", "10")], "hang")], convert=convert, went=went)
    assert until(get, Changed).object == "a"
    assert until(get, Went).uid == "of b"
    assert until(get, Changed).object == "c"
    assert script.seen[:2] == ["5", "9"]


NAMED = b'"metadata":{"name":"p","generateName":"p-","namespace":"d","uid":"u","ownerReferences":[{"uid":"o"}]}'
HEAD = b'{"type":"DELETED","object":{"kind":"Pod","apiVersion":"v1",'


@pytest.mark.parametrize(
    ("line", "uid"),
    [
        (HEAD + NAMED + b"}}", "u"),
        (HEAD + NAMED.replace(b'"generateName":"p-",', b"") + b"}}", "u"),
        (HEAD.replace(b"DELETED", b"MODIFIED") + NAMED + b"}}", ""),
        (HEAD.replace(b"Pod", b"PodTemplate") + NAMED + b"}}", ""),
        (HEAD + b'"metadata":{"name":"p","labels":{"uid":"x"},"namespace":"d","uid":"u"}}}', ""),
        (HEAD + b'"metadata":{"name":"p\\","namespace":"d","uid":"x","namespace":"d","uid":"u"}}}', ""),
        (HEAD + NAMED[:50], ""),
    ],
)
def test_the_end_of_a_pod_is_told_only_where_the_line_surely_says_it(line, uid):
    assert end_of(line) == uid


def test_a_pod_that_went_is_told_as_it_was_last_seen_and_one_that_nobody_knew_is_not(kube_at):
    view = View(kube_at("http://127.0.0.1:9"))
    known = Pod(namespace="d", name="p", uid="u", node="n")
    for item in (
        Changed(view._pods, known, False),
        Went(view._pods, "u"),
        Went(view._pods, "u"),
        Went(view._pods, "x"),
    ):
        view.post(item)
    assert view.pump(0).gone == [known]
    assert (view.pods, view.on_node) == ({}, {"n": set()})


def test_an_expired_version_is_answered_with_a_new_listing(follow):
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    _, get = follow([(["a"], "5"), (["b"], "50")], [([gone], "end"), ([], "hang")])
    assert until(get, Synced).objects == ("a",)
    assert until(get, Synced).objects == ("b",)


def test_a_silent_connection_is_taken_for_dead_and_resumed(follow):
    script, get = follow([([], "5")], [([], "hang"), ([pod("c", "6")], "hang")], silence=0.3)
    assert until(get, Changed).object == "c"
    assert script.seen[:2] == ["5", "5"]


@pytest.mark.parametrize("said", [[], [{"status": "ok"}]], ids=["nothing", "no event"])
def test_connections_that_end_at_once_are_not_made_without_a_pause(follow, said):
    """A proxy may answer for a server that is not there, as fast as it is asked."""
    script, get = follow([([], "5")], [(said, "end")])
    until(get, Synced)
    threading.Event().wait(1.0)
    assert len(script.seen) <= 5


def test_a_listing_that_is_asked_for_while_the_watch_connects_does_not_wait_for_the_next_event(follow):
    asked, go_on = threading.Event(), threading.Event()

    def before_answer():
        asked.set()
        go_on.wait(8)

    script, get = follow([(["a"], "5"), (["b"], "6")], [([], "hang")], before_answer=before_answer)
    assert until(get, Synced).objects == ("a",)
    assert asked.wait(8)
    script.watch.relist()
    go_on.set()
    assert until(get, Synced).objects == ("b",)


def test_a_view_is_old_as_long_as_one_of_its_watches_is_down(kube_at):
    view = View(kube_at("http://127.0.0.1:9"))
    gone = PoolshiftError("pods", "cannot be listed")
    for item in (Lost(view._pods, gone), Resumed(view._budgets), Synced(view._budgets, ())):
        view.post(item)
    view.pump(0)
    assert view.lost is gone
    view.post(Resumed(view._pods))
    view.pump(0)
    assert view.lost is None


def test_a_server_that_is_away_is_told_and_tried_again(kube_at):
    queue = SimpleQueue()
    watch = Watch(kube_at("http://127.0.0.1:9"), "/api/v1/pods", lambda raw, _: raw, queue)
    watch.start()
    assert isinstance(queue.get(timeout=20), Lost)
    watch.stop()
