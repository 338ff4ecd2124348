"""The fabric table: complete, sourced, and never above what its own wires can carry."""

import pytest

from infra.errors import BadSpec
from infra.fabrics import ceiling, fabric_of, load
from infra.fabrics.loader import _read_file, parse_size

GIB = 1 << 30


@pytest.mark.parametrize("fabric", load().values(), ids=lambda f: f.machine_type)
def test_nics_times_rate_is_the_line_rate(fabric):
    assert fabric.nics * fabric.nic_gb_s == fabric.line_rate_gb_s


@pytest.mark.parametrize("fabric", load().values(), ids=lambda f: f.machine_type)
def test_every_figure_has_a_source_and_a_date(fabric):
    assert fabric.source
    assert fabric.date.startswith("20")
    for curve in fabric.curves:
        assert curve.source
        assert curve.date.startswith("20")
        assert curve.derived == ("derived" in curve.source)


@pytest.mark.parametrize("fabric", load().values(), ids=lambda f: f.machine_type)
def test_no_expected_figure_lies_above_the_physical_ceiling(fabric):
    for curve in fabric.curves:
        for nodes in {curve.nodes_min, curve.nodes_max}:
            assert max(curve.busbw_gb_s.values()) <= ceiling(fabric, curve.collective, nodes)


@pytest.mark.parametrize("fabric", load().values(), ids=lambda f: f.machine_type)
def test_an_rdma_type_has_a_network_to_pin_and_the_control_has_none(fabric):
    if fabric.rdma:
        assert fabric.pin in fabric.nccl_net
        assert "Socket" not in fabric.nccl_net
        assert fabric.expectation("all-reduce", 4, 8 * GIB)
    else:
        assert "Socket" in fabric.nccl_net
        assert not fabric.curves


def test_published_peaks_stay_below_the_ceiling_though_above_the_line_rate():
    """487 GB/s on two p5 nodes is more than their 400 GB/s and still right: a tree crosses the wire once."""
    assert 487 < ceiling(fabric_of("p5.48xlarge"), "all-reduce", 2) == 750
    assert 382 < ceiling(fabric_of("p5en.48xlarge"), "all-reduce", 4) == 420


@pytest.mark.parametrize(
    ("machine", "nodes", "published"),
    [("p5.48xlarge", 2, 79.1), ("a3-megagpu-8g", 2, 40.2), ("p6-b300.48xlarge", 4, 116.9), ("p5.48xlarge", 8, 51.1)],
)
def test_alltoall_ceiling_is_just_above_published_peaks(machine, nodes, published):
    top = ceiling(fabric_of(machine), "alltoall", nodes)
    assert 0.80 <= published / top <= 0.97


def test_one_node_has_no_ceiling():
    assert ceiling(fabric_of("p5.48xlarge"), "all-reduce", 1) is None


def test_a_published_curve_goes_before_a_derived_one():
    assert not fabric_of("p6-b200.48xlarge").expectation("all-reduce", 4, GIB).derived
    assert fabric_of("p6-b200.48xlarge").expectation("all-reduce", 8, GIB).derived


def test_nothing_is_interpolated():
    assert fabric_of("p5.48xlarge").expectation("all-reduce", 2, 3 * GIB) is None
    assert fabric_of("p5.48xlarge").expectation("reduce-scatter", 2, GIB) is None


def test_the_published_h200_peak_passes_and_a_half_speed_path_does_not():
    """355 GB/s was a fixed pool's peak; a path without GPUDirect runs at about half of the expected curve."""
    figure = fabric_of("p5en.48xlarge").expectation("all-reduce", 2, 8 * GIB)
    assert figure.floor_gb_s < 355
    assert figure.floor_gb_s > 0.55 * figure.busbw_gb_s


@pytest.mark.parametrize("machine", ["p5en.48xlarge", "p6-b200.48xlarge", "a3-ultragpu-8g", "a4-highgpu-8g"])
def test_half_of_what_a_machine_of_400_gb_s_reaches_on_two_nodes_is_below_its_floor(machine):
    """A tree crosses the wire once: 487 GB/s of p5. A ring alone is a choice of NCCL, half of the NICs a defect."""
    figure = fabric_of(machine).expectation("all-reduce", 2, 16 * GIB)
    assert 487 / 2 < figure.floor_gb_s < 330


def test_hyperpods_name_of_a_machine_type_is_the_same_machine():
    assert fabric_of("ml.p5.48xlarge") is fabric_of("p5.48xlarge") is not None
    assert fabric_of("ml.a3-megagpu") is fabric_of("p5") is None


def test_gke_rdma_resources_are_one_of_each():
    resources = fabric_of("a3-ultragpu-8g").rdma_resources
    assert resources == {f"networking.gke.io.networks/rdma-{i}": 1 for i in range(8)}


def test_an_unknown_key_is_an_error_and_not_a_silent_loss():
    with pytest.raises(BadSpec, match="p9"):
        _read_file("p9.yaml", {"machine_type": "p9", "line_rate_gb_s": 1, "colour": "red"})


def test_sizes_are_read_with_their_unit():
    assert parse_size("256Mi") == 256 << 20
    with pytest.raises(ValueError, match="not a size"):
        parse_size("256M")


@pytest.mark.parametrize(
    ("machine", "own", "other"),
    [
        ("p5.48xlarge", "NVIDIA H100 80GB HBM3", ("NVIDIA H100 NVL", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB")),
        ("a3-megagpu-8g", "NVIDIA H100 80GB HBM3", ("NVIDIA H100 80GB HBM3 MIG 1g.10gb",)),
        ("p5en.48xlarge", "NVIDIA H200", ("NVIDIA H200 NVL", "NVIDIA GH200 480GB")),
        ("p4d.24xlarge", "NVIDIA A100-SXM4-40GB", ("NVIDIA A100-PCIE-40GB",)),
    ],
)
def test_a_card_of_the_same_model_is_not_the_machines_gpu(machine, own, other):
    assert fabric_of(machine).has_gpu(own)
    assert not any(fabric_of(machine).has_gpu(name) for name in other)
