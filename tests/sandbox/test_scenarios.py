"""Scenario files: all load, wrong ones name the field, and defects hit the node that they name."""

from __future__ import annotations

import pytest

from infra.errors import BadSpec
from infra.sandbox import scenario as scenarios
from infra.sandbox.agent.defects import Defects
from infra.sandbox.bringup import PATHS
from infra.sandbox.scenario import FewerDevices, ImageMissing, NoGdr, SlowNic


def test_the_promised_scenarios_exist():
    assert set(scenarios.names()) >= {
        "healthy",
        "plugin-image-missing",
        "plugin-broken-271-days",
        "one-slow-nic",
        "wrong-zone-lustre",
        "reservation-full",
        "capacity-shortage",
        "pool-degraded",
        "pdb-blocked",
        "gang-training",
    }


@pytest.mark.parametrize("name", scenarios.names())
def test_a_scenario_loads_with_its_workloads(name):
    loaded = scenarios.load(name)
    assert loaded.name == name
    assert loaded.summary.endswith(".")
    assert loaded.clouds == ("eks", "gke")
    for workload in loaded.workloads:
        assert {obj["kind"] for obj in scenarios.manifests(workload)} <= set(PATHS)


@pytest.mark.parametrize("cloud", scenarios.CLOUDS)
def test_plugins_tolerate_what_their_charts_do_and_not_our_taint(cloud):
    everything = [{"operator": "Exists"}]
    charts = [{"key": "CriticalAddonsOnly", "operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}]
    for obj in scenarios.manifests(f"plugins-{cloud}"):
        if obj["kind"] == "DaemonSet":
            narrow = obj["metadata"]["name"] in ("nvidia-device-plugin-daemonset", "aws-efa-k8s-device-plugin")
            assert obj["spec"]["template"]["spec"]["tolerations"] == (charts if narrow else everything)


@pytest.mark.parametrize("cloud", scenarios.CLOUDS)
@pytest.mark.parametrize("name", scenarios.names())
def test_an_image_that_cannot_be_pulled_can_be_replaced_by_another_tag(name, cloud):
    missing = [d for d in scenarios.load(name).defects if isinstance(d, ImageMissing)]
    for obj in scenarios.manifests(f"plugins-{cloud}") if missing else ():
        if obj["kind"] == "DaemonSet":
            pod = obj["spec"]["template"]["spec"]
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                repository, _, _ = container["image"].rpartition(":")
                assert not Defects(items=missing).image_missing(f"{repository}:another", "new")
    assert not missing or any(
        Defects(items=missing).image_missing(container["image"], "new")
        for obj in scenarios.manifests(f"plugins-{cloud}")
        if obj["kind"] == "DaemonSet"
        for part in ("initContainers", "containers")
        for container in obj["spec"]["template"]["spec"].get(part, ())
    )


def test_the_broken_plugin_is_271_days_old():
    assert scenarios.load("plugin-broken-271-days").clock.age_days == 271


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("summary: x.\nsource: {nodes: 0}", ["source.nodes", "greater than or equal to 1"]),
        ("summary: x.\nsorce: {}", ["sorce", "Extra inputs"]),
        ("summary: x.\ntarget: {outcome: fine}", ["target.outcome", "active", "fine"]),
        ("summary: x.\ndefects: [{kind: gremlin}]", ["defects.0", "gremlin", "slow-nic"]),
        ("summary: [", ["is not YAML"]),
        ("- 1", ["is not a mapping"]),
    ],
)
def test_a_wrong_scenario_names_the_field(text, words):
    with pytest.raises(BadSpec) as raised:
        scenarios.parse("mine", text)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(BadSpec, match="healthy"):
        scenarios.load("helthy")
    with pytest.raises(BadSpec, match="do not exist"):
        scenarios.manifests("nothing")


def test_both_clouds_say_where_the_source_is():
    eks, gke = (scenarios.PLACES[cloud] for cloud in scenarios.CLOUDS)
    assert eks.pool_labels("p") == {"eks.amazonaws.com/nodegroup": "p"}
    assert gke.pool_labels("p") == {"cloud.google.com/gke-nodepool": "p"}
    config = scenarios.CloudConfig(place=eks, scenario=scenarios.load("healthy"))
    assert config.source_labels()["example.com/efa"] == "disabled"


def test_defects_hold_for_the_named_side_and_node_only():
    defects = Defects(
        source_pool="old",
        items=(
            ImageMissing(kind="image-missing", image="*/efa:*", pool="target"),
            SlowNic(kind="slow-nic", pool="target", node=1, nic=3, rate=0.25),
            NoGdr(kind="no-gdr", pool="source", node=0),
            FewerDevices(kind="fewer-devices", pool="target", node=0, resource="nvidia.com/gpu", count=7),
        ),
    )
    assert defects.image_missing("registry/efa:1", "new")
    assert not defects.image_missing("registry/efa:1", "old")
    assert not defects.image_missing("registry/other:1", "new")
    assert defects.nic_rates("new", 1, 4) == (1.0, 1.0, 1.0, 0.25)
    assert defects.nic_rates("new", 0, 4) == defects.nic_rates("old", 1, 4) == (1.0,) * 4
    assert not defects.gdr("old", 0)
    assert defects.gdr("new", 0)
    assert defects.limit("new", 0, "nvidia.com/gpu", 8) == 7
    assert defects.limit("new", 1, "nvidia.com/gpu", 8) == 8
