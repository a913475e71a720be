"""Policies that look at nothing but the kind of a layer, and then at who is free."""

from __future__ import annotations

import pytest

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from overlap_train.scheduling.policy import Board, CpuOnly, GpuOnly, Paper

PLATFORM = Platform((Device("cpu"), Device("gpu", "gpu"), Device("gpu2", "gpu")))
KINDS = ("conv", "depthwise", "dense", "norm", "pool")


def placed(policy, board=None):
    layers = [Layer(kind, Work(kind), (Port(n - 1),)) for n, kind in enumerate(KINDS)]
    request = Request(0, LayerGraph(layers, [Port(len(KINDS) - 1)]))
    board = board or Board(PLATFORM, FixedCosts(lambda *_: 1.0))
    places = dict.fromkeys(range(-1, len(KINDS)), "cpu")
    return [policy.select(request, index, places, board).name for index in range(len(KINDS))]


def test_each_has_its_kind_of_device():
    assert placed(GpuOnly()) == ["gpu"] * 5
    assert placed(CpuOnly()) == ["cpu"] * 5
    assert placed(Paper()) == ["gpu", "gpu", "cpu", "cpu", "cpu"]


@pytest.mark.parametrize("policy", [GpuOnly, Paper])
def test_of_several_the_one_that_is_done_first(policy):
    board = Board(PLATFORM, FixedCosts(lambda *_: 1.0))
    board.expect(PLATFORM["gpu"], 5.0)
    assert placed(policy(), board)[0] == "gpu2"


def test_without_such_a_device_it_goes_to_another():
    board = Board(Platform((Device("cpu"),)), FixedCosts(lambda *_: 1.0))
    assert placed(GpuOnly(), board) == placed(Paper(), board) == ["cpu"] * 5
