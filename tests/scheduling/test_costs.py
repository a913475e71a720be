"""The cost model and its regression: unseen layers, changing load, what wrong costs do to a schedule."""

import random

import numpy as np
import pytest

from overlap_train.scheduling import CostModel, Device
from overlap_train.scheduling.costs import WorkRegression
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Work, merge_work
from overlap_train.scheduling.simulation import Arrival, simulate
from scripts.bench.scheduling_simulated import XAVIER_FIGURES, roofline, xavier


def conv(flops, moved=1e4, weights=1e3):
    return Work("conv", flops, moved, weights)


def true_s(work):
    rate = 1e9 if work.kind == "conv" else 1e8
    return 1e-5 * work.operations + work.flops / rate


SAMPLES = [conv(f) for f in np.geomspace(1e4, 1e8, 12)] + [
    Work("pool", f, 1e4, 0.0) for f in np.geomspace(1e4, 1e7, 12)
]


@pytest.fixture(scope="module")
def fitted():
    return WorkRegression([(work, true_s(work)) for work in SAMPLES])


def test_what_was_fitted_is_predicted(fitted):
    for work in SAMPLES:
        assert fitted.seconds(work) == pytest.approx(true_s(work), rel=0.1)


def test_layers_in_between_and_beyond_follow_the_mean_of_their_kind(fitted):
    for work in (conv(3e5), conv(4e7), Work("pool", 2e5, 1e4), conv(1e9)):
        assert fitted.seconds(work) == pytest.approx(true_s(work), rel=0.25)


def test_a_segment_takes_what_its_parts_take(fitted):
    parts = [conv(1e6), Work("pool", 1e6, 1e4)]
    expected = sum(map(fitted.seconds, parts))
    assert fitted.seconds(merge_work(parts)) == pytest.approx(expected)


def test_one_layer_is_enough_and_none_gives_the_default(fitted):
    alone = WorkRegression([(conv(1e6), 0.25)])
    assert alone.seconds(conv(1e6)) == pytest.approx(0.25, rel=0.01)
    assert CostModel(default_s=0.5).seconds(Layer("a", conv(1.0), (Port(-1),)), CPU) == 0.5
    assert 0 < fitted.seconds(Work("norm", 1e6, 1e4)) < 1.0, "a kind that was not seen, from all others"


def test_of_many_samples_some_over_all_of_them_are_kept():
    works = [conv(f) for f in np.geomspace(1e4, 1e8, 1000)]
    fitted = WorkRegression([(work, true_s(work)) for work in works])
    assert len(fitted._centres) == 600
    for work in (works[0], works[-1]):
        assert fitted.seconds(work) == pytest.approx(true_s(work), rel=0.1)


CPU = Device("CPU")


def some_layer(rng, index):
    kind = rng.choice(("conv", "norm", "dense", "pool"))
    moved = 2 ** rng.uniform(14, 24)
    weights = 2 ** rng.uniform(10, 22) if kind in ("conv", "dense") else 1e3
    flops = {"conv": moved * 2 ** rng.uniform(4, 8), "dense": 2 * weights}.get(kind, moved)
    return Layer(f"layer{index}", Work(kind, flops, moved, weights), (Port(index - 1),))


def test_layers_held_out_are_predicted_within_15_percent():
    rng, noise = random.Random(0), np.random.default_rng(0)
    layers = [some_layer(rng, index) for index in range(400)]
    true_s = roofline(XAVIER_FIGURES)
    costs = CostModel()
    costs.add_profile((x, CPU, true_s(x, CPU) * noise.lognormal(0, 0.05)) for x in layers[:300])
    errors = [abs(costs.seconds(x, CPU) / true_s(x, CPU) - 1) for x in layers[300:]]
    assert np.mean(errors) <= 0.15


def test_learned_costs_lengthen_the_makespan_by_at_most_5_percent():
    rng, platform, true_s = random.Random(1), xavier(), roofline(XAVIER_FIGURES)
    graphs = [LayerGraph([some_layer(rng, i) for i in range(60)], [Port(59)], name=f"n{n}") for n in range(6)]
    graphs = [
        LayerGraph([Layer(f"{g.name}/{x.name}", x.work, x.inputs) for x in g.layers], g.outputs, name=g.name)
        for g in graphs
    ]
    costs = CostModel()
    costs.add_profile((x, d, true_s(x, d)) for g in graphs[:3] for x in g.layers for d in platform.devices)
    arrivals = [Arrival(graph) for graph in graphs]
    perfect = simulate(arrivals, platform, "earliest_finish", true_s).makespan_s
    learned = simulate(arrivals, platform, "earliest_finish", true_s, costs=costs).makespan_s
    assert learned <= perfect * 1.05


def test_load_is_followed_up_and_down_and_carries_over_to_other_layers():
    seen, other = (Layer(name, Work("conv"), (Port(-1),)) for name in ("seen", "other"))
    costs = CostModel()
    costs.add_profile([(seen, CPU, 1e-3), (other, CPU, 2e-3)])
    version = costs.version
    for _ in range(400):
        costs.observe(seen, CPU, 3e-3)
    assert costs.seconds(seen, CPU) == pytest.approx(3e-3, rel=0.1)
    assert costs.seconds(other, CPU) > 3e-3
    assert costs.version > version
    for _ in range(400):
        costs.observe(seen, CPU, 1e-3)
    assert costs.seconds(seen, CPU) == pytest.approx(1e-3, rel=0.1)


def test_observations_for_a_larger_batch_do_not_look_like_load():
    layer = Layer("a", Work("conv"), (Port(-1),))
    costs = CostModel()
    costs.add_profile([(layer, CPU, 1e-3)])
    for _ in range(50):
        costs.observe(layer, CPU, 8e-3, examples=8)
    assert costs.seconds(layer, CPU) == pytest.approx(1e-3)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused(seconds):
    with pytest.raises(ValueError, match=r"seconds of 'a' on 'CPU' in measured must be (positive|finite)"):
        CostModel().add_profile([(Layer("a", Work("conv"), (Port(-1),)), CPU, seconds)])
