"""Operators as they act on the API, in threads, and two pools of two nodes for their gangs to move between."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from infra.errors import NotFound
from infra.model.spec import Drain

OLD, NEW = ("old-0", "old-1"), ("new-0", "new-1")
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


def two_pools(build, old=OLD, new=NEW):
    """Old nodes that take what is made now, new ones that open with `open_new`."""
    for name in old:
        build.node(name, "old")
    for name in new:
        build.node(name, "new", unschedulable=True)
    return build


def open_new(build, new=NEW):
    for name in new:
        build.uncordon(name)


def homes(build):
    return {p["spec"].get("nodeName") for p in build.pods() if p["status"].get("phase") == "Running"}


def rule(**more):
    return {"namespace": "default", "name": "llm", "mode": "restart", **more}


def drain(**more):
    return Drain.model_validate({"workloads": [rule(**more)]})


class Double:
    """A controller's behaviour in a thread: `step` is called again and again on a client of its own."""

    def __init__(self, kube, step):
        self.kube, self.step = kube, step
        self.stop = threading.Event()
        self.errors = []
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.wait(0.05):
            try:
                self.step(self.kube)
            except NotFound:
                continue
            except Exception as error:  # told by the test, not lost with the thread
                self.errors.append(error)
                return


@contextmanager
def operating(kube_at, url):
    """Starts doubles: `start(step)`. What one of them raised fails the test at the end."""
    made = []

    def start(step):
        double = Double(kube_at(url), step)
        double.thread.start()
        made.append(double)
        return double

    try:
        yield start
    finally:
        for double in made:
            double.stop.set()
            double.thread.join()
    assert not [error for double in made for error in double.errors]


def create(kube, row, name, spec, **meta):
    return kube.request(
        "POST",
        row.path("default"),
        body={
            "apiVersion": f"{row.group}/{row.version}",
            "kind": row.kind,
            "metadata": {"name": name, **meta},
            "spec": spec,
        },
    )
