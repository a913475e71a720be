"""Graphs, platforms and requests: what cannot run is refused, and who ranks before whom."""

from __future__ import annotations

import pytest

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.graph import LayerGraph, Port, Request, require_priority, urgency
from tests.scheduling.graphs import chain, cut, layer


@pytest.mark.parametrize(
    ("layers", "outputs", "message"),
    [
        ([], [], "at least one layer"),
        ([layer("a", Port(-1)), layer("a", Port(0))], [Port(1)], "'a' repeats"),
        ([layer("a", Port(0))], [Port(0)], "expected one before it"),
        ([layer("a", Port(-1, 1))], [Port(0)], "reads input 1"),
        ([layer("a", Port(-1))], [Port(0, 1)], "reads output 1"),
        ([layer("a", Port(-1))], [Port(1)], "the output reads layer 1"),
    ],
)
def test_a_graph_that_cannot_run_is_refused(layers, outputs, message):
    with pytest.raises(ValueError, match=message):
        LayerGraph(layers, outputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device("a", slots=0), "slots must be at least 1; got 0"),
        (lambda: Platform(()), "unique names"),
        (lambda: Platform((Device("a"), Device("a"))), "unique names"),
        (lambda: Platform((Device("a"),), {("a", "b"): Transfer()}), "no device is named 'b'"),
        (lambda: Platform((Device("a"),), home="b"), "no device is named 'b'"),
    ],
)
def test_a_platform_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_transfers_cost_latency_and_bandwidth_and_staying_costs_nothing():
    platform = Platform((Device("c"), Device("g", "gpu")), {("c", "g"): Transfer(1e-3, 1e9)})
    assert platform.transfer_s("c", "g", 1e6) == pytest.approx(2e-3)
    assert platform.transfer_s("c", "c", 1e6) == 0
    assert platform.transfer_s("g", "c", 1e6) == 0


def request(**options):
    return Request(0, chain("n", 1), **options)


@pytest.mark.parametrize(
    ("options", "rank_s"),
    [
        ({}, 5.0),
        ({"priority": 2}, 5.0 - 2 * 3.0),
        ({"priority": -1}, 5.0 + 3.0),
        ({"deadline_s": 100.0}, 5.0),
        ({"deadline_s": 6.0}, 6.0 - 1.0 - 3.0),
        ({"deadline_s": 6.0, "priority": 2}, -1.0),
    ],
)
def test_priority_and_deadline_count_as_time(options, rank_s):
    assert urgency(request(arrival_s=5.0, **options), remaining_s=1.0, aging_s=3.0) == rank_s


def test_later_requests_get_later_values_whatever_their_priority():
    early = urgency(request(arrival_s=0.0), remaining_s=0.0, aging_s=1.0)
    urgent = [
        urgency(request(arrival_s=float(t), priority=9), remaining_s=0.0, aging_s=1.0) for t in range(20)
    ]
    assert urgent == sorted(urgent)
    assert urgent[0] < early < urgent[-1]


@pytest.mark.parametrize("value", [0, -3, 1 << 53, -(1 << 53)])
def test_a_priority_is_an_integer_that_can_be_weighed(value):
    assert require_priority("priority", value) == value


@pytest.mark.parametrize(
    ("value", "error"),
    [((1 << 53) + 1, ValueError), (-(1 << 53) - 1, ValueError), (1.5, TypeError), ("high", TypeError)],
)
def test_others_are_refused_by_name(value, error):
    with pytest.raises(error, match="priority must be"):
        require_priority("priority", value)


def test_a_layer_comes_in_the_form_that_was_decided():
    made = Request(0, cut(2))
    assert made.layer(3).name == "x/join"
    made.whole[3] = True
    assert (made.layer(3).name, made.layer(1).name) == ("x", "x/0")
    made.whole[3] = False
    assert made.layer(3).name == "x/join"
