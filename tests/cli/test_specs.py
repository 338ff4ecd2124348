"""A wrong spec fails before anything is touched, naming field, value and what is allowed."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import specs
from infra.errors import BadSpec
from infra.model.spec import MigrationSpec, RevalidationSpec, format_duration, parse_duration

GOOD: dict[str, Any] = {
    "name": "p5en-move",
    "source": {"kind": "eks", "region": "us-east-2", "cluster": "train", "name": "gpu-old"},
    "target": {
        "kind": "eks",
        "region": "us-east-2",
        "cluster": "train",
        "name": "gpu-rdma",
        "machine_type": "p5en.48xlarge",
        "nodes": 2,
        "subnet": "subnet-0123456789abcdef0",
        "node_role": "arn:aws:iam::123456789012:role/gpu-node",
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with one field set, given as a dotted path."""
    spec = yaml.safe_load(yaml.safe_dump(GOOD))
    place = spec
    *parents, last = path.split(".")
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = value
    return spec


def message(spec: object) -> str:
    with pytest.raises(BadSpec) as caught:
        specs.parse(spec, MigrationSpec)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_good_spec_is_read_with_its_defaults() -> None:
    spec = specs.parse(GOOD, MigrationSpec)

    assert spec.target.kind == "eks"
    assert spec.soak.duration == timedelta(hours=1)
    assert spec.retire.enabled


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("target.nodes", 0, ["target.nodes", "greater than or equal to 1", "0"]),
        ("target.subnet", "sub-1", ["target.subnet", "sub-1"]),
        ("target.colour", "red", ["target.colour: no such field", "allowed: ", "machine_type"]),
        ("target.node", 4, ["target.node: no such field; did you mean nodes?"]),
        ("drain.waves.cannary", 1, ["drain.waves.cannary: no such field; did you mean canary?"]),
        ("target.kind", "aks", ["target", "eks", "gke", "external"]),
        ("strategy", "big-bang", ["strategy", "auto", "side-by-side", "swap", "big-bang"]),
        ("soak.duration", "soon", ["soak.duration", "'soon'", "1h30m"]),
        ("gate.confidence", 2, ["gate.confidence", "less than 1"]),
        ("name", "No_Good!", ["name", "No_Good!"]),
        ("source.region", "mars", ["source.region", "mars"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(path: str, value: Any, words: list[str]) -> None:
    text = message(changed(path, value))

    for word in words:
        assert word in text


def test_every_wrong_field_is_named_at_once() -> None:
    spec = changed("target.nodes", 0)
    spec["target"]["subnet"] = "x"

    text = message(spec)
    assert "target.nodes" in text
    assert "target.subnet" in text


def test_pools_of_two_clouds_are_refused() -> None:
    source = {"kind": "gke", "project": "p", "location": "europe-west4", "cluster": "train", "name": "old"}

    assert "both pools must be in one cluster" in message({**GOOD, "source": source})


def test_a_target_named_as_the_source_is_refused() -> None:
    assert "needs a name of its own" in message(changed("target.name", "gpu-old"))


def test_pools_of_two_clusters_are_refused() -> None:
    assert "both pools must be in one cluster" in message(changed("target.cluster", "other"))


@pytest.mark.parametrize("data", [b"[1, 2]", b"just words", b"", b"a: [unclosed", b"\xff\xfe\x80"])
def test_a_file_that_holds_no_mapping_is_refused_with_a_place_to_start(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_bytes(data)

    with pytest.raises(BadSpec, match="infra/examples") as caught:
        specs.load(str(file), MigrationSpec)
    for word in ("NoneType", "codec"):
        assert word not in str(caught.value)


def test_the_other_kind_of_spec_is_told_apart_from_a_wrong_one() -> None:
    with pytest.raises(BadSpec, match="is a migration's"):
        specs.parse(GOOD, RevalidationSpec)
    with pytest.raises(BadSpec, match="poolshift revalidate"):
        specs.parse({"name": "again", "pools": []}, MigrationSpec)


def test_a_file_that_is_not_there_is_refused_with_a_place_to_start(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="infra/examples"):
        specs.load(str(tmp_path / "nothing.yaml"), MigrationSpec)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("20m", 1200),
        ("1h30m", 5400),
        ("2d", 172800),
        (45, 45),
        ("45", 45),
        ("PT30M", 1800),
        ("P1DT2H", 93600),
    ],
)
def test_durations_are_read_in_the_spellings_of_the_field(text: object, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


TOO_LONG = ["90000000h", "999999999999h", "9" * 400, "9" * 5000 + "s", "PT" + "9" * 20 + "S", 1e300, float("inf")]


@pytest.mark.parametrize("text", ["", "1x", "-5m", "m", "P", "PT", True, None, [1], float("nan"), *TOO_LONG])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_a_duration_is_written_as_it_can_be_read() -> None:
    for seconds in (0, 1, 59, 60, 3600, 5400, 90061):
        assert parse_duration(format_duration(timedelta(seconds=seconds))) == timedelta(seconds=seconds)


def test_the_form_shows_durations_as_a_person_writes_them() -> None:
    schema = json.dumps(MigrationSpec.model_json_schema())

    assert '"default": "30m"' in schema
    assert "PT30M" not in schema
    assert '"required": {' not in schema, "Prefect takes a property of this name for the schema's own keyword"
