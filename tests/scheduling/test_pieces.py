"""Layers that run whole or in pieces: once, in the form that is done sooner, with equal results."""

from __future__ import annotations

import itertools
import random
import weakref
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap_train.errors import SchedulingError
from overlap_train.scheduling import (
    POLICIES,
    Arrival,
    BackgroundLoad,
    CostModel,
    Device,
    Platform,
    simulate,
)
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.distributor import LayerController
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from tests.scheduling.graphs import (
    CORES,
    Tensor,
    cut,
    forms,
    in_pieces,
    random_costs,
    random_graph,
    random_platform,
    times,
)
from tests.scheduling.test_engine import Anywhere, served


def ran(graph, true_s, policy="earliest_finish", platform=CORES, **options):
    result = simulate([Arrival(graph)], platform, policy, true_s, **options)
    return {job.layer: job.device for job in result.jobs}


def test_the_graph_knows_which_pieces_a_layer_joins():
    graph = cut(3)
    assert graph.joins == {1: 4, 2: 4, 3: 4}
    assert graph.pieces == ((), (), (), (), (1, 2, 3), ())
    assert graph.form(4, whole=True).name == "x"
    assert graph.form(4, whole=False).name == "x/join"
    assert graph.form(0, whole=True).name == "before"


def test_both_forms_have_the_same_outputs():
    whole = Layer("x", Work("conv"), (Port(-1),), (4, 4))
    layers = [Layer("x/0", Work("conv"), (Port(-1),)), Layer("join", Work("merge"), (Port(0),), whole=whole)]
    with pytest.raises(ValueError, match="'join' and its whole differ in their outputs"):
        LayerGraph(layers, [Port(1)])
    with pytest.raises(ValueError, match="layer 'join' reads layer 7"):
        LayerGraph([layers[0], replace(layers[1], whole=replace(whole, inputs=(Port(7),)))], [Port(1)])


@pytest.mark.parametrize(
    ("piece_reads", "whole_reads", "others", "outputs", "message"),
    [
        ((0,), (0, 1), (), [3], "'x' reads what neither its pieces nor their join read"),
        ((0, 1), (0,), (), [3], "'x/0' reads what 'x' does not"),
        ((0,), (0,), (2,), [4], "'x/0' is read by others than its join"),
        ((0,), (0,), (), [3, 2], "'x/0' is read by others than its join"),
    ],
)
def test_pieces_that_could_not_be_left_out_are_refused(piece_reads, whole_reads, others, outputs, message):
    whole = Layer("x", Work("conv"), tuple(map(Port, whole_reads)))
    layers = [Layer("first", Work("pool"), (Port(-1),)), Layer("second", Work("pool"), (Port(-1),))]
    layers.append(Layer("x/0", Work("conv"), tuple(map(Port, piece_reads)), alone=True))
    layers.append(Layer("join", Work("merge"), (Port(2),), whole=whole))
    layers += [Layer("other", Work("pool"), (Port(source),)) for source in others]
    with pytest.raises(ValueError, match=message):
        LayerGraph(layers, [Port(source) for source in outputs])


def test_a_whole_has_a_name_of_its_own():
    layers = [Layer("x", Work("conv"), (Port(-1),)), Layer("x/0", Work("conv"), (Port(0),), alone=True)]
    layers.append(Layer("join", Work("merge"), (Port(1),), whole=Layer("x", Work("conv"), (Port(0),))))
    with pytest.raises(ValueError, match="layer names must be unique, 'x' repeats"):
        LayerGraph(layers, [Port(2)])


def test_deadlines_count_on_no_pieces():
    """`first` would be early enough behind `second` if its pieces took a quarter each; they may not."""
    first = Arrival(cut(name="x"), deadline_s=0.050)
    second = Arrival(LayerGraph([Layer("y", Work("pool"), (Port(-1),))], [Port(0)]), deadline_s=0.055)
    one_core = Platform((Device("cpu", "cpu"),))

    def true_s(layer, device):
        return 0.02 if layer.name == "y" else times(1.0, 0.03)(layer, device)

    found = simulate([second, first], one_core, "cpu_only", true_s)
    assert found.finish_s[1] < found.finish_s[0] <= 0.055


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(
    ("gpu_s", "cpu_s", "whole"), [(0.01, 1.0, True), (0.01, 0.02, False), (1.0, 0.02, False)]
)
def test_a_policy_takes_the_form_that_is_done_sooner(policy, gpu_s, cpu_s, whole):
    where = ran(cut(), times(gpu_s, cpu_s), policy)
    if policy in ("gpu_only", "paper"):  # pieces would wait for each other there
        assert where["x"] == "gpu"
    elif policy == "cpu_only":
        assert [where[f"x/{n}"] for n in range(4)] == ["cpu"] * 4
    elif whole:
        assert where["x"] == "gpu"
    else:
        assert "x" not in where
        assert "cpu" in {where[f"x/{n}"] for n in range(4)}


def test_in_pieces_requests_are_done_one_after_another_rather_than_all_at_the_end():
    costs, graph = times(10.0, 0.02), cut()
    crowd = simulate([Arrival(graph, n * 1e-9) for n in range(8)], CORES, "cpu_only", costs)
    # Whole, four would be done after 20 ms and four after 40.
    assert sum(crowd.finish_s) / 8 < 0.03
    assert crowd.makespan_s < 8 * 0.02 * 1.1 / 4 + 1e-3


def test_nothing_known_means_whole():
    assert "x" in ran(cut(), times(0.01, 0.02), costs=CostModel())


def test_a_loaded_gpu_leaves_a_layer_to_the_cores_once_the_load_is_seen():
    graph, true_s = cut(), times(0.004, 0.02)
    costs = CostModel()
    costs.add_profile((x, d, true_s(x, d)) for x in forms(graph) for d in CORES.devices)
    assert ran(graph, true_s, costs=costs)["x"] == "gpu"
    load = {"gpu": BackgroundLoad(0.95, 0.0)}
    for _ in range(30):
        where = ran(graph, true_s, costs=costs, loads=load)
    assert "x" not in where


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(sorted(set(POLICIES) - {"oracle"})))
def test_every_layer_once_in_one_form_after_what_it_reads(seed, policy):
    rng = random.Random(seed)
    graphs = [in_pieces(rng, random_graph(rng, rng.randint(1, 12), name=f"n{i}")) for i in range(3)]
    arrivals = [Arrival(graph, rng.uniform(0, 0.02), rng.randint(-1, 2)) for graph in graphs]
    platform, costs = random_platform(rng), random_costs(rng, *graphs)
    loads = {"gpu": BackgroundLoad(rng.uniform(0, 0.9), rng.uniform(0, 1))}
    result = simulate(arrivals, platform, policy, costs, loads=loads)
    for number, graph in enumerate(graphs):
        jobs = [job for job in result.jobs if job.request == number]
        by_name = {job.layer: job for job in jobs}
        assert len(jobs) == len(by_name)
        layers = []
        for index, layer in enumerate(graph.layers):
            whole = layer.whole is not None and layer.whole.name in by_name
            assert (layer.name in by_name) == (not whole and not _left_out(graph, index, by_name))
            if whole or layer.name in by_name:
                layers.append(graph.form(index, whole=whole))
        assert {layer.name for layer in layers} == set(by_name)
        ends = {
            index: by_name[name].end_s
            for index, layer in enumerate(graph.layers)
            for name in (layer.name, layer.whole.name if layer.whole else "")
            if name in by_name
        }
        for layer in layers:
            reads = {port.source for port in layer.inputs if port.source >= 0}
            assert all(ends[source] <= by_name[layer.name].start_s + 1e-12 for source in reads)
        assert all(job.start_s >= arrivals[number].time_s for job in jobs)
        assert result.finish_s[number] == max(job.end_s for job in jobs)
    for device in platform.devices:
        jobs = [job for job in result.jobs if job.device == device.name]
        changes = sorted((at, by) for job in jobs for at, by in ((job.start_s, 1), (job.end_s, -1)))
        assert max(itertools.accumulate(by for _, by in changes), default=0) <= device.slots


def _left_out(graph, index, by_name):
    return index in graph.joins and graph.layers[graph.joins[index]].whole.name in by_name


def adding(graph, failing=""):
    """A layer returns the sum of its inputs and 1; in pieces the first has the sum, the join adds the 1."""

    def runs(layer, run):
        def checked(inputs):
            if layer.name == failing:
                raise RuntimeError(f"{failing} broke")
            return run(inputs)

        return {"cpu": checked, "gpu": checked}

    def whole_of(layer):
        return replace(layer, runs=runs(layer, lambda inputs: [sum(inputs) + 1 for _ in layer.output_bytes]))

    layers = []
    for index, layer in enumerate(graph.layers):
        if layer.whole is not None:
            layers.append(replace(whole_of(layer), whole=whole_of(layer.whole)))
        elif index in graph.joins:
            first = graph.pieces[graph.joins[index]][0] == index
            layers.append(
                replace(layer, runs=runs(layer, lambda inputs, first=first: [sum(inputs) if first else 0]))
            )
        else:
            layers.append(whole_of(layer))
    return LayerGraph(layers, graph.outputs, input_bytes=graph.input_bytes, name=graph.name)


class Whimsical(Anywhere):
    """Chooses devices and forms at random."""

    def runs_whole(self, request, index, places, board):
        return self._rng.random() < 0.5


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_results_do_not_depend_on_the_form(seed):
    rng = random.Random(seed)
    graphs = [random_graph(rng, rng.randint(1, 12), name=f"n{i}") for i in range(4)]
    moldable = [in_pieces(rng, graph) for graph in graphs]
    results = served(random_platform(rng), Whimsical(seed), list(map(adding, graphs + moldable)), 1.0)
    for number in range(4):
        assert results[number][1] is None
        assert results[number + 4] == results[number]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_computes_the_same(policy):
    results = served(CORES, policy, [adding(cut())] * 4, 1.0, costs=FixedCosts(times(0.01, 0.02)))
    assert set(results.values()) == {((4.0,), None)}


@pytest.mark.parametrize("failing", ["x", "x/2", "x/join"])
def test_a_form_that_fails_ends_its_request_and_no_other(failing):
    costs = FixedCosts(times(0.01, 1.0) if failing == "x" else times(1.0, 0.02))
    results = served(CORES, "earliest_finish", [adding(cut(), failing), adding(cut())], 1.0, costs=costs)
    outputs, error = results[0]
    assert outputs is None
    assert str(error) == f"{failing} broke"
    assert results[1] == ((4.0,), None)


@pytest.mark.parametrize("whole", [False, True])
def test_a_controller_keeps_what_the_form_will_read_and_nothing_else(whole):
    made = weakref.WeakValueDictionary()

    def tensor(name):
        made[name] = result = Tensor()
        return result

    controller = LayerController(Request(0, cut(2), (tensor("x"),)))
    controller.request.inputs = ()
    assert controller.start() == [0]
    assert controller.complete(0, [tensor("y")]) == [1, 2]
    controller.decide(3, whole)
    if whole:
        assert controller.skip(1) == []
        assert controller.skip(2) == [3]
        assert controller.inputs(3) == (made["y"],)
    else:
        assert controller.complete(1, [tensor("p")]) == []
        assert controller.complete(2, [tensor("q")]) == [3]
        assert controller.inputs(3) == (made["p"], made["q"])
    assert controller.complete(3, [tensor("z")]) == [4]
    assert set(made) == {"z"}
    assert controller.complete(4, ["out"]) == []
    assert controller.finished
    assert controller.outputs() == ("out",)
    with pytest.raises(SchedulingError, match="a second time"):
        controller.complete(3, [Tensor()])
