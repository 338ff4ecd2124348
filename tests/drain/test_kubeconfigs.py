"""Several kubeconfigs in KUBECONFIG are one, merged as kubectl merges them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from infra.errors import BadSpec
from infra.kube.api import connect
from infra.model.spec import Cluster

KUBECTL = Path(sys.executable).parent / "kubectl"


def config(**parts):
    """`current`, and names of contexts with (server, token)."""
    current = parts.pop("current", None)
    document = {"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []}
    for name, (server, token) in parts.items():
        document["clusters"].append({"name": name, "cluster": {"server": f"http://{server}"}})
        document["users"].append({"name": name, "user": {"token": token}})
        document["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
    return yaml.safe_dump(document | ({"current-context": current} if current else {}))


ONE = config(current="a", a=("a.test", "first"))
TWO = config(current="b", a=("other.test", "second"), b=("b.test", "third"))
PARTS = {
    "context": "contexts: [{name: split, context: {cluster: far, user: me}}]\ncurrent-context: split\n",
    "user": "users: [{name: me, user: {token: mine}}]\n",
    "cluster": "clusters: [{name: far, cluster: {server: 'http://far.test'}}]\n",
}
LISTS = {
    "the first says what is current": [ONE, TWO],
    "in whatever order": [TWO, ONE],
    "one is not there": [None, TWO, ONE],
    "one is empty": ["", ONE, TWO],
    "the first names no context": [config(b=("late.test", "late")), TWO],
    "context, user and cluster are apart": list(PARTS.values()),
    "the same twice": [ONE, ONE],
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes the files (None: one that is not there) and names them in KUBECONFIG."""

    def write(texts):
        paths = [tmp_path / f"{number}.yaml" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            if text is not None:
                path.write_text(text)
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))
        return paths

    return write


@pytest.mark.parametrize("texts", LISTS.values(), ids=LISTS)
def test_kubectl_goes_to_the_same_server_as_the_same_user(files, texts):
    files(texts)
    said = json.loads(subprocess.check_output([KUBECTL, "config", "view", "--minify", "--raw", "-o", "json"]))

    kube = connect(Cluster())

    assert kube.context == said["current-context"]
    assert kube.server == said["clusters"][0]["cluster"]["server"]
    assert kube.credentials() == {"authorization": f"Bearer {said['users'][0]['user']['token']}"}


def test_a_context_of_any_of_the_files_can_be_named(files):
    files([ONE, TWO])
    assert connect(Cluster(context="b")).server == "http://b.test"


def test_a_context_that_none_of_them_has_is_answered_with_those_of_all(files):
    paths = files([ONE, TWO])
    with pytest.raises(BadSpec) as caught:
        connect(Cluster(context="c"))
    assert caught.value.expected == "one of a, b"
    assert all(str(path) in caught.value.object for path in paths)


def test_a_relative_file_is_found_beside_the_kubeconfig_that_names_it(files, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "token").write_text("of the far file")
    far = config(far=("far.test", "")).replace("token: ''", "tokenFile: token")
    (tmp_path / "far" / "config").write_text(far)
    files([ONE])
    os.environ["KUBECONFIG"] += os.pathsep + str(tmp_path / "far" / "config")
    assert connect(Cluster(context="far")).credentials() == {"authorization": "Bearer of the far file"}


def test_a_file_that_the_spec_names_is_the_only_one(files):
    paths = files([ONE, TWO])
    assert connect(Cluster(kubeconfig=str(paths[1]))).context == "b"
    with pytest.raises(BadSpec, match="no context 'split'"):
        connect(Cluster(kubeconfig=str(paths[1]), context="split"))


def test_a_context_that_is_a_number_is_none_of_the_names(files):
    files([ONE.replace("current-context: a", "current-context: 7")])
    with pytest.raises(BadSpec, match="no context '7'"):
        connect(Cluster())


@pytest.mark.parametrize(
    "broken",
    [
        "[1, 2]",
        "clusters: 3",
        "contexts: [a]",
        "contexts: [{name: a, context: b}]",
        "users: [{name: a, user: [b]}]",
        "a: [",
        base64.b64decode("gICA").decode("latin-1"),
        "users: {a: b}",
    ],
)
def test_one_that_cannot_be_read_is_named_and_not_left_out(files, broken):
    paths = files([ONE, broken])
    with pytest.raises(BadSpec) as caught:
        connect(Cluster())
    assert caught.value.object == f"kubeconfig {paths[1]}"
