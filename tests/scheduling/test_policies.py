"""Where each policy puts a layer, and the optimistic times that the default one looks at."""

from dataclasses import replace

import pytest

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from overlap_train.scheduling.policy import (
    POLICIES,
    Board,
    CpuOnly,
    GpuOnly,
    Paper,
    make_policy,
    optimistic_costs,
)
from tests.scheduling.graphs import job, layer

CPU, GPU = Device("cpu", slots=2), Device("gpu", "gpu")


def test_the_board_expects_a_job_where_a_slot_is_free():
    device = Device("cpu", slots=4)
    board = Board(Platform((device,)), FixedCosts(lambda *_: 1.0))
    board.now_s = 10.0
    assert board.free_s(device) == 10.0
    long, *short = (replace(job(0.0, device), predicted_s=s) for s in (0.4, 0.01, 0.01, 0.01))
    board.expect(device, 0.4)
    board.started(long)
    for number in range(3):
        assert board.free_s(device) == 10.0, f"{number} are about to begin in three free slots"
        board.expect(device, 0.01)
    assert board.free_s(device) == pytest.approx(10.01), "behind the short ones, not behind the long one"
    for waiting in short:
        board.started(waiting)
    assert board.free_s(device) == pytest.approx(10 + (0.4 + 3 * 0.01) / 4), "all slots are taken"
    board.now_s = 10.005
    board.ended(short[0])
    assert board.free_s(device) == 10.005


def test_a_device_is_not_taken_for_a_little_while_others_lose_more():
    board = Board(Platform((CPU, GPU)), FixedCosts(lambda *_: 1.0))
    for requests, lost_s in ((1, (0.0, 0.0)), (5, (1.0, 2.0))):  # the CPU has two slots
        board.active_requests = requests
        assert (board.held_up_s(CPU, 1.0), board.held_up_s(GPU, 1.0)) == lost_s


PLATFORM = Platform((Device("cpu"), Device("gpu", "gpu"), Device("gpu2", "gpu")))
KINDS = ("conv", "depthwise", "dense", "norm", "pool")


def placed_kinds(policy, board):
    layers = [Layer(kind, Work(kind), (Port(n - 1),)) for n, kind in enumerate(KINDS)]
    request = Request(0, LayerGraph(layers, [Port(len(KINDS) - 1)]))
    places = dict.fromkeys(range(-1, len(KINDS)), "cpu")
    return [policy.select(request, index, places, board).name for index in range(len(KINDS))]


@pytest.mark.parametrize(
    ("policy", "devices", "places"),
    [
        (GpuOnly, PLATFORM, ["gpu"] * 5),
        (CpuOnly, PLATFORM, ["cpu"] * 5),
        (Paper, PLATFORM, ["gpu", "gpu", "cpu", "cpu", "cpu"]),
        (GpuOnly, Platform((Device("cpu"),)), ["cpu"] * 5),
        (Paper, Platform((Device("cpu"),)), ["cpu"] * 5),
    ],
)
def test_each_has_its_kind_of_device_of_several_the_first_that_is_free(policy, devices, places):
    board = Board(devices, FixedCosts(lambda *_: 1.0))
    assert placed_kinds(policy(), board) == places
    if places[0] == "gpu":
        board.expect(devices["gpu"], 5.0)
        assert placed_kinds(policy(), board)[0] == "gpu2"


def test_policies_are_made_by_name():
    assert {name: type(make_policy(name)) for name in POLICIES} == POLICIES
    given = GpuOnly()
    assert make_policy(given) is given
    assert make_policy("paper") is not make_policy("paper")
    with pytest.raises(ValueError, match=r"policy must be one of .*'cpu_only'"):
        make_policy("fastest")


def test_optimistic_times_count_transfers_and_examples_and_are_made_anew_under_another_load():
    seconds = {"a": (4.0, 1.0), "b": (2.0, 3.0), "c": (1.0, 1.0)}
    layers = [layer("a", Port(-1), outputs=(10**6,)), layer("b", Port(-1)), layer("c", Port(0), Port(1))]
    costs = FixedCosts(lambda x, device: seconds[x.name][device.kind == "gpu"])
    links = {("cpu", "gpu"): Transfer(0.25, 1e6), ("gpu", "cpu"): Transfer(0.5, 1e6)}
    graph, board = LayerGraph(layers, [Port(2)]), Board(Platform((GPU, Device("cpu")), links), costs)
    assert board.tails_s(graph, 2.0) == [[2.0, 2.0], [2.0, 2.0], [0.0, 0.0]]
    assert board.least_s(graph, 2.0) == 4.0 + 2.0  # b on the CPU, and c
    assert optimistic_costs(graph, board.platform, costs)[0] == [1.0, 1.0]
    table = board.tails_s(graph, 2.0)
    costs.version += 1
    assert board.tails_s(graph, 2.0) is table  # not more than a few times a second
    board.now_s += 1.0
    assert board.tails_s(graph, 2.0) is not table


def test_where_a_layer_is_to_cross_its_transfer_is_in_the_optimistic_times():
    layers = [layer("a", Port(-1), outputs=(10**6,)), layer("b", Port(0))]
    costs = FixedCosts(lambda x, device: 1.0 if (x.name == "a") == (device.kind == "gpu") else 9.0)
    links = {("gpu", "cpu"): Transfer(0.5, 1e6)}
    table = optimistic_costs(LayerGraph(layers, [Port(1)]), Platform((CPU, GPU), links), costs, 2.0)
    assert table == [[2.0, 2.0 + 0.5 + 2.0], [0.0, 0.0]]
