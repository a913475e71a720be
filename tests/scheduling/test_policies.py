"""Where each policy puts a layer, and when a device will be free for it."""

import pytest

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Job, Layer, LayerGraph, Port, Request, Work
from overlap_train.scheduling.policy import POLICIES, Board, CpuOnly, GpuOnly, Paper, make_policy
from tests.scheduling.graphs import layer

CPU, GPU = Device("cpu", slots=2), Device("gpu", "gpu")


def job(device, seconds):
    """A job of a request of its own."""
    graph = LayerGraph([layer("a", Port(-1))], [Port(0)])
    return Job(graph.layers[0], (), 0, Request(0, graph), 0, device, predicted_s=seconds)


def test_the_board_expects_a_job_where_a_slot_is_free():
    device = Device("cpu", slots=4)
    board = Board(Platform((device,)), FixedCosts(lambda *_: 1.0))
    board.now_s = 10.0
    assert board.free_s(device) == 10.0
    long, *short = (job(device, seconds) for seconds in (0.4, 0.01, 0.01, 0.01))
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
