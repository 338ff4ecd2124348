"""Which folder of binaries is used, and what a person reads when there is none. Shell scripts play the binaries."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.sandbox.real import MissingBinaries, cache_folder, find
from infra.sandbox.real.binaries import NAMES


def assets(folder: Path, versions: dict[str, str] | str = "v1.36.3", names: tuple[str, ...] = NAMES) -> Path:
    """A folder of scripts that print a version as the binaries do."""
    folder.mkdir(parents=True)
    for name in names:
        version = versions if isinstance(versions, str) else versions[name]
        script = folder / name
        script.write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
        script.chmod(0o755)
    return folder


def test_the_folder_that_the_environment_names_is_used(tmp_path: Path) -> None:
    folder = assets(tmp_path / "assets")
    found = find(environ={"KUBEBUILDER_ASSETS": str(folder)})
    assert (found.folder, found.version) == (folder, "1.36.3")
    assert found.path("etcd") == str(folder / "etcd")


def test_the_cache_is_used_without_it(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = assets(cache_folder("1.36.3", environ))
    assert find(environ=environ).folder == folder


def test_a_minor_finds_the_newest_patch_in_the_cache(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    for patch in ("2", "10", "9"):
        assets(cache_folder(f"1.34.{patch}", environ), f"v1.34.{patch}")
    assert find("1.34", environ).version == "1.34.10"


def test_nothing_built_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingBinaries) as caught:
        find(environ={"XDG_CACHE_HOME": str(tmp_path)})
    message = str(caught.value)
    assert "etcd, kube-apiserver, kube-controller-manager, kube-scheduler not found in" in message
    assert "make control-plane" in message
    assert "KUBEBUILDER_ASSETS" in message
    assert "\n" not in message


def test_an_incomplete_folder_names_what_it_lacks(tmp_path: Path) -> None:
    folder = assets(tmp_path / "assets", names=("etcd", "kube-apiserver"))
    with pytest.raises(MissingBinaries, match="kube-controller-manager, kube-scheduler not found in") as caught:
        find(environ={"KUBEBUILDER_ASSETS": str(folder)})
    assert "unset KUBEBUILDER_ASSETS" in caught.value.remedy


@pytest.mark.parametrize("wanted", ["1.34", "1.34.4", "1.36.2"])
def test_another_version_than_asked_for_is_refused(tmp_path: Path, wanted: str) -> None:
    folder = assets(tmp_path / "assets")
    with pytest.raises(MissingBinaries, match=r"is version 1\.36\.3") as caught:
        find(wanted, {"KUBEBUILDER_ASSETS": str(folder)})
    assert caught.value.expected == wanted


def test_a_mixed_folder_is_refused(tmp_path: Path) -> None:
    versions = dict.fromkeys(NAMES, "v1.36.3") | {"kube-scheduler": "v1.34.4"}
    folder = assets(tmp_path / "assets", versions)
    with pytest.raises(MissingBinaries, match=r"kube-apiserver 1\.36\.3.*kube-scheduler 1\.34\.4"):
        find(environ={"KUBEBUILDER_ASSETS": str(folder)})


def test_a_version_that_is_too_old_is_refused(tmp_path: Path) -> None:
    folder = assets(tmp_path / "assets", "v1.27.1")
    with pytest.raises(MissingBinaries, match=r"1\.31 or newer"):
        find(environ={"KUBEBUILDER_ASSETS": str(folder)})


def test_a_build_without_a_version_is_refused(tmp_path: Path) -> None:
    folder = assets(tmp_path / "assets", "v0-master")
    with pytest.raises(MissingBinaries, match="calls itself 'Kubernetes v0-master'"):
        find(environ={"KUBEBUILDER_ASSETS": str(folder)})


def test_a_binary_that_does_not_run_is_named(tmp_path: Path) -> None:
    folder = assets(tmp_path / "assets")
    (folder / "kube-apiserver").write_text("\x7fELF of another machine")
    with pytest.raises(MissingBinaries, match="kube-apiserver: does not run"):
        find(environ={"KUBEBUILDER_ASSETS": str(folder)})


@pytest.mark.parametrize(
    ("go", "said"),
    [
        ("", "no Go; expected go 1.21 or newer on PATH"),
        ("echo go version go1.19.8 linux/amd64", "go version go1.19.8 linux/amd64; expected go 1.21 or newer on PATH"),
        (
            'test "$1" = version && echo go1.26.8 && exit; echo verifying; echo "dial tcp: no route" >&2; exit 1',
            "dial tcp: no route; expected a build; next: see to that (GOPROXY serves the modules)",
        ),
    ],
)
def test_what_a_build_lacks_is_said_in_one_line(tmp_path: Path, go: str, said: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    if go:
        (programs / "go").write_text(f"#!/bin/sh\n{go}\n")
        (programs / "go").chmod(0o755)
    build = Path(__file__).parent / "binaries" / "build.py"
    env = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(programs), "PYTHONPATH": str(build.parents[3])}
    ended = subprocess.run([sys.executable, build], capture_output=True, text=True, env=env, check=False)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "or point KUBEBUILDER_ASSETS at a folder that holds the binaries" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not list((tmp_path / "poolshift" / "control-plane").glob(".building*"))
