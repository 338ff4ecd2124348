"""The network of the storage traffic: proven by counters, never by configuration."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.model.verdict import Outcome
from infra.probes.readers.lnet import LnetSight, split_lnet
from tasks.rules.lustre_path import BULK, elsewhere, judge_path

GB = 10e9


def sight(when, nets, connections=()):
    shown = {net: {"send": n} if isinstance(n, int) else n for net, n in nets.items()} if nets is not None else None
    return LnetSight(when=when, node="a", nets=shown, connections=tuple(connections))


def judged(before, after, connections=(), moved=GB):
    sights = [sight("before", before), sight("after", after, connections)]
    return judge_path({"a": sights}, {"a": moved})


NEEDED = int(GB / BULK)


@pytest.mark.parametrize("net", ["efa", "o2ib", "o2ib3"])
def test_messages_on_an_rdma_network_that_carry_the_bytes_are_a_pass(net):
    assert judged({net: 5, "tcp": 90}, {net: 5 + NEEDED, "tcp": 150}).outcome is Outcome.PASS


def test_the_same_bytes_over_tcp_fail_though_the_mount_has_an_rdma_network():
    found = judged({"efa": 5, "tcp": 90}, {"efa": 9, "tcp": 90 + NEEDED})
    assert found.outcome is Outcome.FAIL
    assert "over TCP" in found.reason


def test_servers_that_are_connected_over_tcp_fail_without_any_counter():
    assert judged(None, None, ["10.0.0.1@tcp"]).outcome is Outcome.FAIL


ONE_ON_TCP = ["10.0.0.1@efa", "10.0.0.2@tcp"]


@pytest.mark.parametrize(
    ("tcp", "outcome"),
    [(NEEDED // 2, Outcome.FAIL), (3 * NEEDED, Outcome.FAIL), (60, Outcome.UNMEASURED), (0, Outcome.UNMEASURED)],
)
def test_one_object_server_on_tcp_never_passes_and_is_named(tcp, outcome):
    found = judged({"efa": 5, "tcp": 90}, {"efa": 5 + NEEDED, "tcp": 90 + tcp}, ONE_ON_TCP)
    assert found.outcome is outcome
    assert "1 of 2 object servers" in found.reason
    assert "10.0.0.2@tcp" in found.reason


def test_half_of_the_messages_over_tcp_is_no_pass_where_no_connection_is_shown():
    assert judged({"efa": 5, "tcp": 90}, {"efa": 5 + NEEDED, "tcp": 90 + NEEDED // 2}).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize(
    "sights",
    [
        [],
        [sight("before", {"efa": 0})],
        [sight("before", None), sight("after", None, ["10.0.0.1@efa"])],
        [sight("before", {"efa": 9000}), sight("after", {"efa": 2 * NEEDED - 9000}), sight("after", {"efa": 1})],
        [sight("before", {"efa": 3 * NEEDED}), sight("after", {"efa": NEEDED})],
        [sight("before", {"efa": 0, "tcp": 5}), sight("after", {"efa": NEEDED})],
        [sight("before", {"efa": 0}), sight("after", {"efa": NEEDED // 4})],
        [sight("before", {"efa": 0}), sight("after", {})],
        [sight("before", {"tcp": 5}), sight("after", {"tcp": 5, "efa": 9 * NEEDED})],
        [sight("before", {"efa": {"send": 9, "recv": 0}}), sight("after", {"efa": {"send": 3, "recv": 9 * NEEDED}})],
        [sight("before", {"efa": {"send": 9}}), sight("after", {"efa": {"send": 9, "recv": 9 * NEEDED}})],
        [sight("before", {"efa": None}), sight("after", {"efa": 9 * NEEDED})],
        [sight("before", {"efa": {"send": "9"}}), sight("after", {"efa": 9 * NEEDED})],
    ],
    ids=[
        *("nothing", "no after", "only a claim", "two ends", "went back", "a net gone", "too few", "all gone"),
        *("a net of after", "one of two went back", "one of two new", "no counter before", "no number before"),
    ],
)
def test_what_is_not_shown_is_unmeasured(sights):
    assert judge_path({"a": sights}, {"a": GB}).outcome is Outcome.UNMEASURED


def test_one_node_on_tcp_and_one_that_says_nothing_open_nothing():
    good = [sight("before", {"efa": 0}), sight("after", {"efa": NEEDED})]
    slow = [sight("before", {"efa": 0, "tcp": 0}), sight("after", {"efa": 0, "tcp": NEEDED})]
    assert judge_path({"a": good, "b": good}, {"a": GB, "b": GB}).outcome is Outcome.PASS
    assert judge_path({"a": good, "b": slow}, {"a": GB, "b": GB}).outcome is Outcome.FAIL
    assert judge_path({"a": good}, {"a": GB, "b": GB}).outcome is Outcome.UNMEASURED
    assert judge_path({}, {}).outcome is Outcome.UNMEASURED
    assert judge_path({"a": good}, {"a": None}).outcome is Outcome.UNMEASURED


LINE = b'{"poolshift":"lnet","when":"after","node":"a","nets":{"efa":{"send":9,"recv":1}},"connections":["1@efa"]}\n'


def test_the_payloads_lines_are_taken_out_and_fios_own_text_stays():
    sights, rest = split_lnet(b'warning\n{"fio version" : "fio-3.33"}\n' + LINE)
    assert rest == b'warning\n{"fio version" : "fio-3.33"}\n'
    assert sights[0].nets == {"efa": {"send": 9, "recv": 1}}


@settings(max_examples=200)
@given(st.integers(0, len(LINE)), st.binary(max_size=6))
def test_a_damaged_line_shows_nothing_more_than_the_whole_one(at, noise):
    before = sight("before", {"efa": 0})
    for damaged in (LINE[:at], LINE[:at] + noise + LINE[at:]):
        sights, _ = split_lnet(damaged)
        assert judge_path({"a": [before, *sights]}, {"a": GB}).outcome is not Outcome.PASS


def test_messages_that_a_node_sends_to_itself_are_no_traffic_over_tcp():
    found = judged({"efa": 5, "lo": 0}, {"efa": 5 + NEEDED, "lo": 5 * NEEDED})
    assert found.outcome is Outcome.PASS
    assert "0 over TCP" in found.reason


@pytest.mark.parametrize("path", ["/mnt/p/../../tmp", "/mnt/p/..", "/mnt/p2"])
def test_a_path_that_leads_out_of_the_mount_is_not_on_it(path):
    mount = {"directory": "/mnt/p", "at": "/mnt", "type": "lustre"}
    sights = [LnetSight(when=when, node="a", nets=None, connections=(), mount=mount) for when in ("before", "after")]
    assert not elsewhere(sights, ["/mnt/p/a..b", "/mnt/p/"], GB)
    assert path in elsewhere(sights, [path], GB)
