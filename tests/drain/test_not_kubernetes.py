"""What stands before the API server answers in its place: that is no list, no absence and no consent."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from infra.clock import SystemClock
from infra.errors import Unreachable
from infra.kube import records
from infra.kube.lines import Lines
from infra.kube.pods import Answer, evict
from infra.kube.refusals import translate
from infra.model.workload import Pod
from tasks import fence
from tasks.drain import DrainOptions, drain_nodes, verify_empty
from tasks.gang_restore import restore
from tasks.rules.outcome import End
from tests.drain.refusing import answering

ODD = {
    "nothing": (200, b""),
    "an empty object": (200, b"{}"),
    "a Status": (200, b'{"kind":"Status","apiVersion":"v1","status":"Success"}'),
    "another list's head": (200, b'{"kind":"PodList","apiVersion":"v1","metadata":{}}'),
    "a login page": (200, b"<html>log in</html>"),
    "a redirection": (302, b"<a>log in</a>"),
    "a 404 in plain text": (404, b"default backend - 404"),
    "Go's own 404": (404, b"404 page not found\n"),
    "a 404 in JSON": (404, b'{"error": "no backend"}'),
}
POD = Pod(namespace="default", name="p", uid="u", node="old-0")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(SystemClock, "sleep", lambda self, seconds: None)


def test_what_is_no_answer_of_the_api_server_proves_nothing(kube, kube_at, url, build):
    build.node("old-0")
    build.pod("alone", "old-0")
    said = {}

    with answering(url, lambda method, path: said["now"]) as at, closing(Lines(kube_at(at))) as lines:
        odd = kube_at(at)
        for name, answer in ODD.items():
            said["now"] = answer
            reads = [lambda: list(odd.list("/api/v1/nodes")), lambda: fence.unfence(odd, "r1")]
            if "list" not in name:  # that would be an object
                reads += [lambda: records.read(odd, "r1"), lambda: restore(odd, "r1")]
            for read in reads:
                with pytest.raises(Unreachable, match="not answered by a Kubernetes API"):
                    read()
            assert [f.code for f in verify_empty(odd, ["old-0"])] == ["emptiness-unverified"], name
            # A Status is what an accepted eviction is answered with; that its pod stays shows in the watch.
            assert evict(lines, POD).answer in (Answer.UNANSWERED, Answer.ERROR) or b"kind" in answer[1], name


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/apis/jobset.x-k8s.io/v1alpha2/jobsets", b"404 page not found\n"),  # a kind that is not served
        ("/api/v1/nodes/a", b'{"kind":"Status","reason":"NotFound","code":404}'),
        ("/api/v1/namespaces/a/pods/p:80/proxy/save", b"no such page"),  # a pod's own program
    ],
)
def test_an_absence_that_the_api_server_itself_tells_is_one(path, body):
    assert type(translate("GET", path, 404, body, None)).__name__ == "NotFound"


def test_a_node_that_somebody_else_calls_absent_is_not_emptied_without_a_cordon(kube, kube_at, url, build, kubelet):
    build.node("old-0")
    build.deployment("web", 2)
    build.until_ready(2)
    build.node("new-0")
    lied = []

    def answer(method, path):
        if (method, path) == ("GET", "/api/v1/nodes/old-0") and len(lied) < 2:
            lied.append(path)
            return 404, b"default backend - 404"
        return None

    with answering(url, answer) as at:
        report = drain_nodes(kube_at(at), ["old-0"], DrainOptions(timeout=timedelta(seconds=20)))

    assert (report.nodes, len(lied)) == ({"old-0": End.DRAINED}, 2)
    assert kube.request("GET", "/api/v1/nodes/old-0")["spec"]["unschedulable"] is True
