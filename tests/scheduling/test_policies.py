"""Where each policy puts a layer, and the optimistic times that the default one looks at."""

import pytest

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from overlap_train.scheduling.policy import (
    POLICIES,
    Board,
    CpuOnly,
    GpuOnly,
    Paper,
    make_policy,
)

CPU, GPU = Device("cpu", slots=2), Device("gpu", "gpu")


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
