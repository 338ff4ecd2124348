"""Templates that are changed so that a gang can run on the target, and what a rollback makes of them."""

from __future__ import annotations

import json
import threading
from copy import deepcopy
from datetime import timedelta

import pytest

from infra.errors import Conflict, NotFound
from infra.kube import switches
from infra.kube.api import MERGE_PATCH
from infra.kube.read import of_objects, snapshot
from infra.kube.view import View
from infra.model.cluster import Taint
from infra.model.gangs import GANG_KINDS, Means, row_of
from infra.model.record import PRIOR
from infra.model.spec import Drain
from tasks.gangs import Mover, forget_moved, restore, unfinished
from tasks.rules.gangs import find_gangs, pinned
from tasks.rules.placement import TargetShape
from tasks.rules.rehoming import Change, apply, joined, rehome_changes, undone

TAINT = Taint(key="rdma", value="yes", effect="NoSchedule")
TARGET = TargetShape(labels={"pool": "new", "zone": "a"}, taints=(TAINT,), nodes=2)
KINDS = [k for k in GANG_KINDS if k.templates]
OLD, NEW = ("old-0", "old-1"), ("new-0", "new-1")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod_spec(*, affinity=True):
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    expressions = [{"key": "pool", "operator": "In", "values": ["old"]}]
    terms = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}
    return {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"pool": "old"},
        **({"affinity": terms} if affinity else {}),
    }


def spec_of(row, **more):
    """A workload's spec with every template that its kind has."""

    def tree(path, name):
        if not path:
            return {**pod_spec(affinity=row.affinity), **more}
        if path[0] != "*":
            return {path[0]: tree(path[1:], name)}
        if row.group == "kubeflow.org":
            roles = ("Launcher", "Worker") if row.kind == "MPIJob" else ("Master", "Worker")
            return {role: {"replicas": 1, **tree(path[1:], role)} for role in roles}
        key = "groupName" if row.group == "ray.io" else "name"
        return [{key: name, **tree(path[1:], name)} for name in ("first", "second")]

    spec = {"other": True}
    for path in row.templates:
        merge(spec, tree(path, ""))
    return spec


def merge(into, other):
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def patched(spec, patch):
    """RFC 7396, as the server does it."""
    if not isinstance(patch, dict):
        return patch
    done = dict(spec) if isinstance(spec, dict) else {}
    for key, value in patch.items():
        if value is None:
            done.pop(key, None)
        else:
            done[key] = patched(done.get(key), value)
    return done


class TestChanges:
    @pytest.mark.parametrize("row", KINDS, ids=lambda k: k.kind)
    @pytest.mark.parametrize("tolerations", [{}, {"tolerations": [{"key": "x", "operator": "Exists"}]}])
    def test_every_template_is_changed_and_goes_back_to_what_it_was(self, row, tolerations):
        spec = spec_of(row, **tolerations)
        before = deepcopy(spec)
        changes = rehome_changes(row, {"spec": spec}, TARGET)
        changes = tuple(Change.from_dict(json.loads(json.dumps(c.to_dict()))) for c in changes)
        patch, foreign = apply({"spec": spec}, changes)
        after = patched({"spec": spec}, patch)["spec"]
        text = json.dumps(after)
        assert not foreign
        assert spec == before  # what was read is left alone
        assert '"old"' not in text
        assert text.count('"rdma"') == text.count('"containers"')
        assert rehome_changes(row, {"spec": after}, TARGET) == ()
        back, foreign = apply({"spec": after}, undone(changes))
        assert not foreign
        assert patched({"spec": after}, back)["spec"] == before
        assert apply({"spec": before}, undone(changes)) == (None, ())  # a second time nothing is left to do

    def test_what_its_owner_has_changed_since_stays_and_is_told(self):
        row = row_of("batch", "Job")
        spec = spec_of(row)
        changes = rehome_changes(row, {"spec": spec}, TARGET)
        after = patched({"spec": spec}, apply({"spec": spec}, changes)[0])["spec"]
        pod = after["template"]["spec"]
        pod["nodeSelector"] = {"pool": "third", "disk": "fast"}
        pod["tolerations"].append({"key": "theirs", "operator": "Exists"})
        back, foreign = apply({"spec": after}, undone(changes))
        found = patched({"spec": after}, back)["spec"]["template"]["spec"]
        assert [c.place for c in foreign] == ["nodeSelector.pool"]
        assert found["nodeSelector"] == {"pool": "third", "disk": "fast"}
        assert found["tolerations"] == [{"key": "theirs", "operator": "Exists"}]
        assert found["affinity"] == spec["template"]["spec"]["affinity"]

    def test_a_template_that_others_have_put_elsewhere_in_its_list_is_found_by_name(self):
        row = row_of("ray.io", "RayCluster")
        spec = spec_of(row)
        changes = rehome_changes(row, {"spec": spec}, TARGET)
        after = patched({"spec": spec}, apply({"spec": spec}, changes)[0])["spec"]
        theirs = {"groupName": "theirs", "template": {"spec": {"nodeSelector": {"pool": "new"}}}}
        after["workerGroupSpecs"].insert(0, theirs)
        back, foreign = apply({"spec": after}, undone(changes))
        first, *others = patched({"spec": after}, back)["spec"]["workerGroupSpecs"]
        assert not foreign
        assert first["template"]["spec"]["nodeSelector"] == {"pool": "new"}
        assert others == spec["workerGroupSpecs"]

    def test_changes_upon_changes_go_back_to_the_oldest_value(self):
        one = Change(at=("template", "spec", "nodeSelector", "pool"), was="old", now="new")
        two = Change(at=one.at, was="new", now="newer")
        assert joined([one], [two]) == (Change(at=one.at, was="old", now="newer"),)

    def test_a_template_that_fits_is_left_as_its_owner_wrote_it(self):
        spec = {"template": {"spec": {"nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]}}}
        assert rehome_changes(row_of("batch", "Job"), {"spec": spec}, TARGET) == ()

    @pytest.mark.parametrize(("kind", "held"), [("JobSet", True), ("RayCluster", False)])
    def test_what_its_webhook_lets_nobody_change_keeps_it_from_being_stopped(self, kind, held):
        row = next(k for k in KINDS if k.kind == kind)
        api = f"{row.group}/{row.version}"
        meta = {"namespace": "d", "name": "llm", "uid": "u"}
        owner = {"apiVersion": api, "kind": kind, "name": "llm", "uid": "u", "controller": True}
        pod = {
            "kind": "Pod",
            "metadata": {"namespace": "d", "name": "llm-0", "uid": "p", "ownerReferences": [owner]},
            "spec": {**pod_spec(), "nodeName": "old-0"},
            "status": {"phase": "Running"},
        }
        seen = of_objects([{"apiVersion": api, "kind": kind, "metadata": meta, "spec": {}}, pod])
        rule = {"namespace": "d", "name": "llm", "kind": kind, "mode": "restart", "rehome": True}
        (gang,) = find_gangs(seen, Drain.model_validate({"workloads": [rule]}), ["old-0"])
        found = pinned(gang, TARGET)
        assert (found is not None) is held
        if found is not None:
            assert "node affinity" in found.remedy


class Operator:
    """Simulated: makes one pod of each of two templates while it is on, and none while it is off.

    Of a kind with copies it makes a Job of the template once, and afterwards only switches that.
    """

    def __init__(self, kube, row):
        self.kube, self.row, self.errors = kube, row, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.wait(0.05):
            try:
                self.step()
            except (NotFound, Conflict):
                continue
            except Exception as error:  # told by the fixture, not lost with the thread
                self.errors.append(error)
                return

    def step(self):
        kube, row = self.kube, self.row
        root = kube.request("GET", row.path("default", "llm"))
        owner = {"apiVersion": root["apiVersion"], "kind": root["kind"], "name": "llm", "controller": True}
        owners = [{**owner, "uid": root["metadata"]["uid"]}]
        labels = {row.pod_label: "llm"}
        for i, path in enumerate(row.templates):
            for key, spec in specs_at(root["spec"], path):
                self.follow(
                    root, spec, key, {"name": f"llm-{i}-{key}".lower(), "labels": labels, "ownerReferences": owners}
                )

    def follow(self, root, spec, key, meta):
        off, pods = self.row.is_stopped(root), "/api/v1/namespaces/default/pods"
        if self.row.copies and key == "Launcher":
            self.launcher(off, spec, {**meta, "name": "llm-launcher"}, meta["labels"])
            return
        pod = self.kube.get(f"{pods}/{meta['name']}")
        if off and pod and not pod["metadata"].get("deletionTimestamp"):
            self.kube.delete(f"{pods}/{meta['name']}")
        elif not off and pod is None:
            self.kube.request("POST", pods, body={"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def launcher(self, off, spec, meta, labels):
        job = self.kube.get("/apis/batch/v1/namespaces/default/jobs/llm-launcher")
        if job is None:
            body = {"suspend": off, "template": {"metadata": {"labels": labels}, "spec": spec}}
            body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": body}
            self.kube.request("POST", "/apis/batch/v1/namespaces/default/jobs", body=body)
        elif job["spec"].get("suspend", False) != off:
            path = "/apis/batch/v1/namespaces/default/jobs/llm-launcher"
            self.kube.request("PATCH", path, body={"spec": {"suspend": off}}, content_type=MERGE_PATCH)


def specs_at(tree, path):
    """(name, pod spec) of each template under a path."""
    if not path:
        return [("0", tree)]
    if path[0] != "*":
        return specs_at(tree[path[0]], path[1:])
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [(str(key), spec) for key, item in items for _, spec in specs_at(item, path[1:])]


@pytest.fixture
def gang(kube, kube_at, url, build, kubelet):
    """A gang of a kind on the old pool, pinned to it, and the new pool beside it."""
    running = []

    def start(row):
        for name in OLD:
            build.node(name)
        for name in NEW:
            build.node(name, "new")
        spec = spec_of(row)
        if row.group == "batch":
            spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": spec["template"]}
        else:
            build.definition(row)
        if row.means is Means.SCALE:
            spec["replicas"] = 2
        body = {"apiVersion": f"{row.group}/{row.version}", "kind": row.kind, "metadata": {"name": "llm"}}
        kube.request("POST", row.path("default"), body={**body, "spec": spec})
        if row.group != "batch":
            running.append(Operator(kube_at(url), row))
            running[-1].thread.start()
        build.until(lambda: len(homes(build)) == len(build.pods()) >= 2, "its pods Running")
        return templates(kube, row)

    yield start
    for operator in running:
        operator.over.set()
        operator.thread.join()
        assert not operator.errors


def templates(kube, row):
    """What is written about where its pods go: on the workload, and on the Jobs that were made of it."""
    found = [kube.request("GET", row.path("default", "llm"))["spec"]]
    for suffix, _ in row.copies:
        found.append(kube.request("GET", f"/apis/batch/v1/namespaces/default/jobs/llm{suffix}")["spec"])
    for spec in found:
        for switch in ("suspend", "runPolicy", "replicas"):
            spec.pop(switch, None)
    return found


def homes(build):
    return [p["spec"]["nodeName"] for p in build.pods() if p["status"].get("phase") == "Running"]


def begin(kube, row, clock, shape, until):
    """Move it until a moment, and then no further: as if killed there."""
    rule = {"namespace": "default", "name": "llm", "kind": row.kind, "mode": "restart", "rehome": True}
    (found,) = find_gangs(snapshot(kube), Drain.model_validate({"workloads": [rule]}), OLD)
    with View(kube) as view:
        mover = Mover(
            kube=kube,
            view=view,
            clock=clock,
            run="r1",
            off=frozenset(OLD),
            limit=timedelta(hours=1),
            say=lambda _: None,
            target=shape,
        )
        work = mover.move(found)
        try:
            while not until():
                next(work)
                view.rest(0.05)
        except StopIteration as stop:
            return stop.value
    return None


def stage(kube, row):
    noted = switches.memory(kube.request("GET", row.path("default", "llm")), "r1")
    return noted["stage"] if noted else ""


@pytest.mark.parametrize("row", KINDS, ids=lambda k: k.kind)
def test_a_gang_that_does_not_come_up_on_the_target_is_rolled_back_to_the_template_it_had(
    kube, build, gang, fast_clock, row
):
    before = gang(row)
    kube.clock = fast_clock
    nowhere = TargetShape(labels={"pool": "nowhere"}, nodes=2)
    begin(kube, row, fast_clock, nowhere, lambda: stage(kube, row) == "started")
    assert templates(kube, row) != before
    assert restore(kube, "r1", started=False) == ()  # the next try looks after it

    (said,) = restore(kube, "r1")

    assert said == f"{row.kind.lower()} default/llm (its template: put back)"
    assert templates(kube, row) == before
    build.until(lambda: len(homes(build)) >= 2 and set(homes(build)) <= set(OLD), "its pods on the old pool")
    root = kube.request("GET", row.path("default", "llm"))
    assert not row.is_stopped(root)
    assert PRIOR not in root["metadata"].get("annotations", {})
    assert restore(kube, "r1") == ()


@pytest.mark.parametrize("kind", ["Job", "LeaderWorkerSet"])
def test_a_gang_that_runs_on_the_target_keeps_its_template_until_somebody_stops_it(kube, build, gang, fast_clock, kind):
    row = next(k for k in KINDS if k.kind == kind)
    before = gang(row)
    kube.clock = fast_clock
    end = begin(kube, row, fast_clock, TargetShape(labels={"pool": "new"}, nodes=2), lambda: False)
    assert end.code == ""
    assert set(homes(build)) <= set(NEW)
    assert stage(kube, row) == "moved"
    assert unfinished(kube, "r1") == []

    assert restore(kube, "r1") == ()
    assert stage(kube, row) == "moved"
    body = switches.stop_patch(row)
    kube.request("PATCH", row.path("default", "llm"), body=body, content_type=MERGE_PATCH)
    build.until(lambda: not build.pods(), "its pods gone")
    assert restore(kube, "r1") == (f"{kind.lower()} default/llm (its template: put back)",)

    root = kube.request("GET", row.path("default", "llm"))
    assert row.is_stopped(root)  # by whoever did it
    assert PRIOR not in root["metadata"].get("annotations", {})
    assert templates(kube, row) == before


def test_a_run_that_has_ended_says_how_a_template_is_put_back_by_hand(kube, build, gang, fast_clock):
    row = row_of("batch", "Job")
    before = gang(row)
    begin(kube, row, fast_clock, TargetShape(labels={"pool": "new"}, nodes=2), lambda: False)

    (said,) = forget_moved(kube, "r1")

    assert stage(kube, row) == ""
    assert forget_moved(kube, "r1") == ()
    patch = json.loads(said.partition(" -p '")[2].rstrip("'"))
    body = patched(switches.stop_patch(row), patch)
    kube.request("PATCH", row.path("default", "llm"), body=switches.stop_patch(row), content_type=MERGE_PATCH)
    build.until(lambda: not build.pods(), "its pods gone")
    kube.request("PATCH", row.path("default", "llm"), body=body, content_type=MERGE_PATCH)
    assert templates(kube, row) == before


def test_a_suspended_job_that_still_has_its_start_time_gets_its_template_back(kube, build, gang, fast_clock):
    """Servers before 1.36 leave the start time on, and with it no template may change."""
    row = row_of("batch", "Job")
    before = gang(row)
    kube.clock = fast_clock
    nowhere = TargetShape(labels={"pool": "nowhere"}, nodes=2)
    begin(kube, row, fast_clock, nowhere, lambda: stage(kube, row) == "started")
    path = row.path("default", "llm")
    kube.request("PATCH", path, body={"spec": {"suspend": True}}, content_type=MERGE_PATCH)
    build.until(lambda: not build.pods(), "its pods gone")
    started = {"status": {"startTime": "2026-01-01T00:00:00Z"}}
    kube.request("PATCH", f"{path}/status", body=started, content_type=MERGE_PATCH)

    restore(kube, "r1")

    assert templates(kube, row) == before


def test_a_template_that_its_owner_has_changed_since_is_left_to_him(kube, build, gang, fast_clock):
    row = row_of("jobset.x-k8s.io", "JobSet")
    gang(row)
    kube.clock = fast_clock
    nowhere = TargetShape(labels={"pool": "nowhere"}, nodes=2)
    begin(kube, row, fast_clock, nowhere, lambda: stage(kube, row) == "started")
    spec = kube.request("GET", row.path("default", "llm"))["spec"]
    for job in spec["replicatedJobs"]:
        job["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "third"}
    kube.request("PATCH", row.path("default", "llm"), body={"spec": spec}, content_type=MERGE_PATCH)

    (said,) = restore(kube, "r1")

    assert "was changed meanwhile and stays: replicatedJobs.first.nodeSelector.pool" in said.replace("second", "first")
    found = kube.request("GET", row.path("default", "llm"))["spec"]
    assert found["replicatedJobs"] == spec["replicatedJobs"]
