"""The EFA layout, derived over EC2's real instance-type data: nothing is tabulated, so nothing goes stale."""

from __future__ import annotations

import gzip
import json
from importlib import resources

import pytest

from infra.aws import network, read
from infra.errors import BadSpec
from infra.model.survey import Card, Machine


@pytest.fixture(scope="module")
def described():
    """EC2's own description of every type, as moto carries it."""
    folder = resources.files("moto.ec2.resources")
    for file in folder.iterdir():
        if file.name.startswith("instance_types.json"):
            data = file.read_bytes()
            return json.loads(gzip.decompress(data) if file.name.endswith("gz") else data)
    raise AssertionError("moto has no instance types")


def layout(described, name):
    return network.efa_layout(read.machine(described[name]))


@pytest.mark.parametrize(
    ("name", "gpus", "efa", "interfaces", "on_card_0"),
    [
        ("p4d.24xlarge", 8, 4, 5, True),
        ("p5.48xlarge", 8, 32, 33, True),
        ("p5e.48xlarge", 8, 32, 33, True),
        ("p5en.48xlarge", 8, 16, 17, True),
        ("p6-b200.48xlarge", 8, 8, 9, True),
        ("p6-b300.48xlarge", 8, 16, 17, False),  # 17 cards, 16 EFA interfaces: counting cards is wrong here
        ("p5.4xlarge", 1, 1, 2, True),
        ("g6e.48xlarge", 8, 4, 5, True),
        ("g6e.8xlarge", 1, 1, 2, True),
    ],
)
def test_layout_of_known_types(described, name, gpus, efa, interfaces, on_card_0):
    machine = read.machine(described[name])
    laid = network.efa_layout(machine)

    assert (machine.gpus, machine.efa_interfaces, len(laid)) == (gpus, efa, interfaces)
    assert laid[0] == {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}
    assert sum(i["InterfaceType"] == "efa-only" for i in laid) == efa
    assert any(i["NetworkCardIndex"] == 0 and i["DeviceIndex"] == 1 for i in laid) is on_card_0


def test_every_efa_type_of_ec2_has_a_legal_layout(described):
    """Device index below the card's limit, one interface a slot, the maximum reached: over all EFA types there are."""
    seen = 0
    for raw in described.values():
        machine = read.machine(raw)
        if not machine.efa_interfaces:
            continue
        seen += 1
        laid = network.efa_layout(machine)
        limits = {card.index: card.interfaces for card in machine.cards}
        slots = [(i["NetworkCardIndex"], i["DeviceIndex"]) for i in laid]
        assert len(set(slots)) == len(slots), machine.name
        assert all(device < limits[card] for card, device in slots), machine.name
        assert sum(i["InterfaceType"] in read.EFA_TYPES for i in laid) == machine.efa_interfaces, machine.name
    assert seen > 250


def test_a_type_without_efa_gets_one_plain_interface(described):
    assert layout(described, "t3.medium") == [{"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}]


def test_where_card_0_takes_one_interface_only_the_primary_carries_efa(described):
    laid = layout(described, "hpc6id.32xlarge")

    assert laid[0]["InterfaceType"] == "efa"


def test_a_layout_that_falls_short_is_refused():
    cards = tuple(Card(index=i, interfaces=1, types=("interface",)) for i in range(4))
    machine = Machine(name="x1.new", gpus=8, cards=cards, efa_interfaces=4)

    with pytest.raises(BadSpec, match=r"x1\.new.*hold 0 EFA interfaces.*expected 4"):
        network.efa_layout(machine)
