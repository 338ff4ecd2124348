"""What is sent fits the clouds' own models: names and types by botocore and protobuf, enums by botocore's lists."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from infra.aws import network as aws_network
from infra.aws.api import Aws
from infra.aws.read import EFA
from infra.errors import BadSpec
from infra.gcp import network as gcp_network
from infra.gcp import read as gcp_read
from infra.model.survey import Card, ClusterFacts, Machine

CARDS = tuple(Card(index=i, interfaces=4 if i == 0 else 2, types=("interface", "efa", "efa-only")) for i in range(16))
P5EN = Machine(name="p5en.48xlarge", gpus=8, rdma={EFA: 16}, cards=CARDS, efa_interfaces=16, fabric="efa")
GKE = ClusterFacts(name="train", version="1.34.1-gke.2541000", state="RUNNING")


def enum(service: str, shape: str) -> set[str]:
    client = boto3.client(service, region_name="us-east-2", aws_access_key_id="x", aws_secret_access_key="x")
    return set(client.meta.service_model.shape_for(shape).enum)


@pytest.fixture
def block_target(target_spec):
    return target_spec(
        "eks",
        reservation={"id": "cr-0a11ce0000000001", "capacity_block": True},
        security_groups=("sg-1", "sg-2"),
        placement_group=None,
        labels={"team": "training"},
    )


def test_the_requests_pass_botocores_own_validation(block_target):
    """moto takes unknown names and wrong types; the Stubber does not."""
    requests = aws_network.requests(block_target, "run-1", P5EN, "sg-1")
    aws = Aws(region="us-east-2", endpoint="http://127.0.0.1:1")
    answers: dict[str, dict[str, Any]] = {
        "ec2.create_launch_template": {"LaunchTemplate": {"LaunchTemplateId": "lt-1"}},
        "eks.create_nodegroup": {"nodegroup": {"nodegroupName": "gpu-rdma"}},
    }

    for request in requests:
        service, method = request.verb.split(".")
        with Stubber(aws.client(service)) as stub:
            stub.add_response(method, answers[request.verb], dict(request.body))
            aws.call(request.verb, request.object, request.body)
            stub.assert_no_pending_responses()


def test_enums_are_those_of_the_service(block_target):
    template, group = aws_network.requests(block_target, "run-1", P5EN, "sg-1")
    data = template.body["LaunchTemplateData"]

    assert group.body["amiType"] in enum("eks", "AMITypes")
    assert group.body["capacityType"] in enum("eks", "CapacityTypes")
    assert group.body["updateConfig"]["updateStrategy"] in enum("eks", "NodegroupUpdateStrategies")
    assert {t["effect"] for t in group.body["taints"]} <= enum("eks", "TaintEffect")
    assert data["InstanceMarketOptions"]["MarketType"] in enum("ec2", "MarketType")
    assert set(aws_network.EFFECTS.values()) == enum("eks", "TaintEffect")


def test_a_capacity_block_has_all_its_three_parts_and_the_capacity_type(block_target):
    template, group = aws_network.requests(block_target, "run-1", P5EN, "sg-1")
    data = template.body["LaunchTemplateData"]

    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert data["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": "cr-0a11ce0000000001"}
    }
    assert data["InstanceType"] == "p5en.48xlarge"
    assert group.body["capacityType"] == "CAPACITY_BLOCK"


def test_every_interface_carries_the_clusters_group_and_the_named_ones(block_target):
    template, _ = aws_network.requests(block_target, "run-1", P5EN, "sg-1")

    for interface in template.body["LaunchTemplateData"]["NetworkInterfaces"]:
        assert interface["Groups"] == ["sg-1", "sg-2"]


def test_what_eks_forbids_in_a_template_is_not_in_it(block_target):
    template, group = aws_network.requests(block_target, "run-1", P5EN, "sg-1")
    data = template.body["LaunchTemplateData"]

    assert not {"SubnetId", "IamInstanceProfile", "SecurityGroupIds", "ImageId"} & set(data)
    assert not {"diskSize", "remoteAccess", "instanceTypes", "version"} & set(group.body)
    assert len(group.body["clientRequestToken"]) <= 64
    assert len(template.body["LaunchTemplateName"]) <= 128


def test_another_content_is_another_template(block_target):
    first, _ = aws_network.requests(block_target, "run-1", P5EN, "sg-1")
    other, _ = aws_network.requests(block_target.model_copy(update={"placement_group": "pg"}), "run-1", P5EN, "sg-1")

    assert first.body["LaunchTemplateName"] != other.body["LaunchTemplateName"]
    assert other.body["LaunchTemplateData"]["Placement"] == {"GroupName": "pg"}


def gke_pool(target):
    from google.cloud import container_v1

    body = gcp_network.request(target, "run-1", GKE, gcp_read.machine(target.machine_type)).body
    return container_v1.CreateNodePoolRequest(dict(body)).node_pool  # ValueError on a name that it does not have


def test_a_gke_pool_with_managed_rdma_networks(target_spec):
    pool = gke_pool(target_spec("gke"))

    assert pool.network_config.accelerator_network_profile == "auto"
    assert not pool.network_config.additional_node_network_configs
    assert pool.config.labels["cloud.google.com/gke-networking-dra-driver"] == "true"
    affinity = pool.config.reservation_affinity
    assert affinity.consume_reservation_type.name == "SPECIFIC_RESERVATION"
    assert list(affinity.values) == ["train-h200"]
    assert (pool.config.accelerators[0].accelerator_type, pool.config.accelerators[0].accelerator_count) == (
        "nvidia-h200-141gb",
        8,
    )
    assert pool.config.ephemeral_storage_local_ssd_config.local_ssd_count == 32
    assert [(t.key, t.effect.name) for t in pool.config.taints] == [
        ("team", "NO_EXECUTE"),
        ("poolshift.dev/unproven", "NO_SCHEDULE"),
    ]
    assert (pool.upgrade_settings.max_surge, pool.upgrade_settings.max_unavailable) == (0, 1)
    assert pool.node_drain_config.respect_pdb_during_node_pool_deletion


def test_a_gke_pool_with_named_networks_and_a_shared_blocks_reservation(target_spec):
    pool = gke_pool(
        target_spec(
            "gke",
            rdma_network_profile="networks",
            rdma_networks=("gvnic/gvnic", "rdma/rdma-0"),
            reservation={"name": "r", "project": "owner", "block": "b-1"},
            placement_policy="compact",
        )
    )

    assert [(c.network, c.subnetwork) for c in pool.network_config.additional_node_network_configs] == [
        ("gvnic", "gvnic"),
        ("rdma", "rdma-0"),
    ]
    assert list(pool.config.reservation_affinity.values) == ["projects/owner/reservations/r/reservationBlocks/b-1"]
    assert (pool.placement_policy.type_.name, pool.placement_policy.policy_name) == ("COMPACT", "compact")


def test_a_gke_pool_on_demand_eats_no_reservation_by_accident(target_spec):
    pool = gke_pool(target_spec("gke", reservation=None))

    assert pool.config.reservation_affinity.consume_reservation_type.name == "NO_RESERVATION"


def test_a_release_channel_keeps_repair_and_upgrade_on(target_spec):
    machine = gcp_read.machine("a3-ultragpu-8g")
    channel = ClusterFacts(name="train", version="1.34.1-gke.1", state="RUNNING", release_channel="REGULAR")

    assert gcp_network.node_pool(target_spec("gke"), "r", GKE, machine)["management"] == {
        "auto_repair": False,
        "auto_upgrade": False,
    }
    assert gcp_network.node_pool(target_spec("gke"), "r", channel, machine)["management"] == {
        "auto_repair": True,
        "auto_upgrade": True,
    }


def test_a_network_without_its_subnetwork_is_a_bad_spec(target_spec):
    target = target_spec("gke", rdma_network_profile="networks", rdma_networks=("gvnic",))

    with pytest.raises(BadSpec, match=r"rdma_networks.*'gvnic'.*NETWORK/SUBNETWORK"):
        gcp_network.node_pool(target, "r", GKE, gcp_read.machine("a3-ultragpu-8g"))


def test_the_prior_state_survives_a_label():
    prior = {
        "autoscaling": True,
        "min": 0,
        "max": 40,
        "total_min": 2,
        "total_max": 80,
        "repair": True,
        "respect_pdb": False,
    }
    text = gcp_network.prior_text(prior)

    assert gcp_network.read_prior(text) == prior
    assert len(text) <= 63
    assert gcp_network.read_prior("garbled") is None
    assert gcp_network.read_prior("") is None
