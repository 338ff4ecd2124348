"""Every figure of the fabric table against what was published, and what the judgement makes of it."""

import pytest

from infra.fabrics import ceiling, fabric_of, load
from infra.fabrics.loader import parse_size
from infra.model.measurement import Sweep, SweepRow
from infra.model.verdict import Outcome
from tasks.rules.bandwidth import SMALLEST_JUDGED, Expected, judge

# (machine type, collective, nodes) -> busbw in GB/s, out of place, as the sources print it.
P4D = {"128Mi": 64.3, "256Mi": 69.9, "512Mi": 74.3, "1Gi": 76.8, "2Gi": 78.3}
PUBLISHED = {
    ("p4d.24xlarge", "all-reduce", 2): P4D,
    ("p4de.24xlarge", "all-reduce", 2): P4D,
    ("p5.48xlarge", "all-reduce", 2): {
        **{"64Mi": 209, "128Mi": 289, "256Mi": 343, "512Mi": 393, "1Gi": 437},
        **{"2Gi": 444, "4Gi": 466, "8Gi": 479, "16Gi": 487},
    },
    ("p5en.48xlarge", "all-reduce", 4): {"16Gi": 382},
    ("p6-b200.48xlarge", "all-reduce", 4): {"128Mi": 295, "256Mi": 325, "1Gi": 367, "4Gi": 375, "16Gi": 377},
    ("p6-b300.48xlarge", "all-reduce", 2): {"16Gi": 654, "64Gi": 751},
    ("p6e-gb200.36xlarge", "all-reduce", 4): {"16Gi": 191.4},
    ("a3-highgpu-8g", "all-reduce", 2): {"8Gi": 83},
    ("a3-highgpu-8g", "all-gather", 2): {"512Mi": 71},
    ("a3-megagpu-8g", "all-reduce", 2): {
        **{"256Mi": 240, "1Gi": 302, "2Gi": 315},
        **{"4Gi": 328, "8Gi": 335, "16Gi": 337},
    },
    ("a3-megagpu-8g", "all-gather", 2): {
        **{"128Mi": 156, "512Mi": 174.8, "1Gi": 182},
        **{"2Gi": 186, "4Gi": 187.9, "8Gi": 188.7},
    },
    # ranges were published from 1 GiB on: 324-328, 327-332, 327-334, 329-336
    ("a3-ultragpu-8g", "all-gather", 2): {
        **{"128Mi": 254, "512Mi": 317, "1Gi": 326},
        **{"2Gi": 330, "4Gi": 330, "8Gi": 333},
    },
}
LINE_RATES = {  # GB/s a node and direction: NICs x rate
    "p4d.24xlarge": (4, 50),
    "p4de.24xlarge": (4, 50),
    "p5.48xlarge": (32, 400),
    "p5e.48xlarge": (32, 400),
    "p5en.48xlarge": (16, 400),
    "p6-b200.48xlarge": (8, 400),
    "p6-b300.48xlarge": (16, 800),
    "p6e-gb200.36xlarge": (4, 200),
    "a2-highgpu-8g": (1, 12.5),
    "a3-highgpu-8g": (4, 100),
    "a3-megagpu-8g": (8, 200),
    "a3-ultragpu-8g": (8, 400),
    "a4-highgpu-8g": (8, 400),
    "a4x-highgpu-4g": (4, 200),
}
EFA = {"p4d.24xlarge": 4, "p5.48xlarge": 32, "p5e.48xlarge": 32, "p5en.48xlarge": 16}
EFA |= {"p6-b200.48xlarge": 8, "p6-b300.48xlarge": 16}


def test_the_table_holds_what_was_published_and_nothing_else_as_published():
    written = {
        (fabric.machine_type, curve.collective, curve.nodes_min): dict(curve.busbw_gb_s)
        for fabric in load().values()
        for curve in fabric.curves
        if not curve.derived and curve.nodes_min == curve.nodes_max
    }
    assert written == {
        key: {parse_size(size): float(value) for size, value in figures.items()} for key, figures in PUBLISHED.items()
    }


def test_a_published_curve_is_of_one_number_of_nodes():
    for fabric in load().values():
        assert all(curve.derived or curve.nodes_min == curve.nodes_max for curve in fabric.curves)


def test_nics_and_line_rates_are_the_machines_own():
    assert {f.machine_type: (f.nics, f.line_rate_gb_s) for f in load().values()} == LINE_RATES
    assert {name: fabric_of(name).rdma_resources["vpc.amazonaws.com/efa"] for name in EFA} == EFA


@pytest.mark.parametrize(
    ("machine", "nodes", "top"),
    [
        ("p5.48xlarge", 2, 93.75),
        ("a3-megagpu-8g", 2, 46.875),
        ("p6-b300.48xlarge", 2, 187.5),
        ("p6-b300.48xlarge", 4, 129.17),
        ("p6-b300.48xlarge", 8, 112.5),
        ("p5.48xlarge", 4, 64.58),
        ("p5.48xlarge", 8, 56.25),
    ],
)
def test_all_to_all_keeps_the_traffic_within_a_node_off_the_wire(machine, nodes, top):
    """(line/g)(n-1)/(n-g): against the published ceilings."""
    assert ceiling(fabric_of(machine), "alltoall", nodes) == pytest.approx(top, abs=0.01)


@pytest.mark.parametrize("fabric", load().values(), ids=lambda f: f.machine_type)
def test_two_nodes_are_bound_by_algbw_and_more_by_busbw(fabric):
    ranks = 2 * fabric.gpus
    assert ceiling(fabric, "all-reduce", 2) * ranks / (2 * (ranks - 1)) == pytest.approx(fabric.line_rate_gb_s)
    assert ceiling(fabric, "all-reduce", 3) == pytest.approx(1.05 * fabric.line_rate_gb_s)
    assert ceiling(fabric, "all-reduce", 64) == ceiling(fabric, "all-reduce", 3)


def sweep(machine, nodes, figures, collective="all-reduce"):
    """A run with these figures, arithmetic and all."""
    fabric = fabric_of(machine)
    ranks = nodes * fabric.gpus
    share = (ranks - 1) / ranks
    factor = 2 * share if collective == "all-reduce" else share
    rows = tuple(
        SweepRow(
            round=0,
            size_bytes=size,
            time_us=size / (value / factor) / 1e3,
            algbw_gb_s=value / factor,
            busbw_gb_s=value,
            wrong=0,
        )
        for size, value in figures.items()
    )
    expected = Expected(nodes=nodes, gpus=fabric.gpus, sizes=tuple(figures))
    run = Sweep(collective=collective, ranks=ranks, hosts=nodes, complete=True, rows=rows)
    return {v.check: v.outcome for v in judge(run, expected, fabric, {})}


def judged(key, factor=1.0):
    machine, collective, nodes = key
    figures = {parse_size(size): value * factor for size, value in PUBLISHED[key].items()}
    large = {size: value for size, value in figures.items() if size >= SMALLEST_JUDGED}
    return sweep(machine, nodes, large, collective)


CURVES = [key for key, figures in PUBLISHED.items() if len(figures) > 2]


@pytest.mark.parametrize("key", CURVES, ids=str)
def test_a_published_healthy_curve_passes_floor_shape_and_ceiling(key):
    assert set(judged(key).values()) == {Outcome.PASS}


@pytest.mark.parametrize("key", CURVES, ids=str)
def test_half_of_it_fails(key):
    """A path without GPUDirect reads 45 to 55 % of the good one."""
    assert judged(key, 0.55)["bandwidth-floor"] is Outcome.FAIL


@pytest.mark.parametrize("key", CURVES, ids=str)
def test_figures_that_no_wire_carries_are_implausible_and_pass_nothing(key):
    found = judged(key, 2.6)
    assert found["plausibility"] is Outcome.UNMEASURED
    assert found["bandwidth-floor"] is Outcome.UNMEASURED


@pytest.mark.parametrize(("dip", "outcome"), [(0.09, Outcome.PASS), (0.12, Outcome.FAIL)])
def test_a_dip_of_over_ten_percent_from_size_to_size_fails_the_shape(dip, outcome):
    figures = {256 << 20: 343.0, 1 << 30: 437.0, 4 << 30: 466.0, 8 << 30: 466.0 * (1 - dip)}
    assert sweep("p5.48xlarge", 2, figures)["bandwidth-shape"] is outcome


@pytest.mark.parametrize("size", ["512Mi", "1Gi", "4Gi", "8Gi"])
def test_the_published_peak_of_355_on_two_h200_nodes_is_a_pass_wherever_it_was_reached(size):
    """A bare "at least 400" would have failed the pool that had just been mended."""
    for machine in ("p5en.48xlarge", "p5e.48xlarge"):
        found = sweep(machine, 2, {256 << 20: 330.0, parse_size(size): 355.0})
        assert set(found.values()) == {Outcome.PASS}


def test_a_size_a_type_and_a_number_of_nodes_without_a_figure_are_measured_and_not_judged():
    assert sweep("p5.48xlarge", 2, {3 << 30: 450.0, 5 << 30: 450.0})["bandwidth-floor"] is Outcome.UNMEASURED
    assert sweep("a2-highgpu-8g", 2, {1 << 30: 10.0, 4 << 30: 11.0})["bandwidth-floor"] is Outcome.UNMEASURED
    assert sweep("p5.48xlarge", 65, {1 << 30: 380.0, 4 << 30: 380.0})["bandwidth-floor"] is Outcome.UNMEASURED


def test_sizes_at_which_latency_decides_are_judged_only_by_a_figure_of_that_very_size():
    small = {16 << 20: 20.0, 32 << 20: 40.0}
    assert sweep("p5.48xlarge", 2, small)["bandwidth-floor"] is Outcome.UNMEASURED
    assert sweep("p5.48xlarge", 2, {64 << 20: 20.0, 128 << 20: 289.0})["bandwidth-floor"] is Outcome.FAIL
    assert sweep("p5.48xlarge", 2, {64 << 20: 209.0, 128 << 20: 289.0})["bandwidth-floor"] is Outcome.PASS
