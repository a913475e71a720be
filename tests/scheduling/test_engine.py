"""The engine with real threads: every layer once, in order, whatever is placed, delayed or fails."""

import gc
import itertools
import random
import threading
import weakref
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap_train.errors import SchedulingError
from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.distributor import LayerController
from overlap_train.scheduling.engine import Engine
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from overlap_train.scheduling.policy import POLICIES
from overlap_train.scheduling.simulation import Arrival, BackgroundLoad, simulate
from tests.scheduling.graphs import (
    Anywhere,
    Movable,
    Tensor,
    Watch,
    chain,
    layer,
    random_costs,
    random_graph,
    random_platform,
    served,
    with_pieces,
)

ONE_CPU = Platform((Device("cpu"),))


def adding(graph, *, failing=(), log=None, delays=None):
    """Each layer returns the sum of its inputs and 1."""

    def computing(index, layer):
        def run(inputs):
            if delays:
                threading.Event().wait(delays[index])
            if log is not None:
                log.append(index)
            if layer.name in failing:
                raise RuntimeError(f"{layer.name} broke")
            return [sum(inputs) + 1 for _ in layer.output_bytes]

        return replace(layer, runs={"cpu": run, "gpu": run})

    layers = [computing(index, layer) for index, layer in enumerate(graph.layers)]
    return LayerGraph(layers, graph.outputs, input_bytes=graph.input_bytes, name=graph.name)


def expected(graph, x):
    values = []
    for node in graph.layers:
        values.append(sum(x if p.source < 0 else values[p.source] for p in node.inputs) + 1)
    return tuple(values[port.source] for port in graph.outputs)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6))
def test_every_layer_runs_once_after_its_inputs_whatever_the_placement(seed, count):
    rng = random.Random(seed)
    graphs = [random_graph(rng, rng.randint(1, 25), name=f"n{i}") for i in range(count)]
    delays = [rng.choice((0, 0, 0, 1e-4, 1e-3)) for _ in range(25)]
    logs = [[] for _ in graphs]
    running = [adding(g, log=log, delays=delays) for g, log in zip(graphs, logs, strict=True)]
    results = served(random_platform(rng), Anywhere(seed), running, float(seed))
    for number, graph in enumerate(graphs):
        assert results[number] == (expected(graph, float(seed)), None)
        assert sorted(logs[number]) == list(range(len(graph)))
        position = {index: place for place, index in enumerate(logs[number])}
        for index, before in enumerate(graph.predecessors):
            assert all(position[source] < position[index] for source in before)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_failing_layer_ends_its_request_and_no_other(seed):
    rng = random.Random(seed)
    graphs = [random_graph(rng, rng.randint(2, 15), name=f"n{i}") for i in range(5)]
    broken = {number: rng.choice(graph.layers).name for number, graph in enumerate(graphs) if number % 2}
    running = [adding(graph, failing=broken.values()) for graph in graphs]
    results = served(random_platform(rng), Anywhere(seed), [*running, one_layer(lambda inputs: [])])
    assert isinstance(results[5][1], SchedulingError), "too few tensors"
    for number, graph in enumerate(graphs):
        outputs, error = results[number]
        if number in broken:
            assert outputs is None
            assert str(error) == f"{broken[number]} broke"
        else:
            assert (outputs, error) == (expected(graph, 0.0), None)


def one_layer(run, name="one"):
    return LayerGraph(
        [Layer(f"{name}/0", Work("conv"), (Port(-1),), (0,), {"cpu": run, "gpu": run})], [Port(0)], name=name
    )


def test_urgent_requests_overtake_and_patient_ones_are_not_starved():
    order, gate, started = [], threading.Event(), threading.Event()

    def blocked(inputs):
        started.set()
        gate.wait(60)
        return [None]

    def noted(inputs):
        order.append(inputs[0])
        return [None]

    watch = Watch(5)
    with Engine(ONE_CPU) as engine:
        engine.start(Request(0, one_layer(blocked), (None,), on_done=watch))
        assert started.wait(60)
        graph = one_layer(noted, "noted")
        engine.start(Request(1, graph, ("late",), 10.0, on_done=watch))
        engine.start(Request(2, graph, ("late urgent",), 10.0, 5, on_done=watch))
        engine.start(Request(3, graph, ("patient",), 0.0, on_done=watch))
        engine.start(Request(4, graph, ("due",), 10.0, deadline_s=2.0, on_done=watch))
        gate.set()
        watch.wait()
    # A priority of 5 counts as 5 s of waiting: the one that has waited for 10 s goes first.
    assert order == ["patient", "due", "late urgent", "late"]


def test_a_worker_keeps_no_tensor_alive_after_its_job():
    tensor = Tensor()
    reference = weakref.ref(tensor)
    watch = Watch(1)
    with Engine(ONE_CPU) as engine:
        engine.start(Request(0, one_layer(lambda inputs: [1]), (tensor,), on_done=watch))
        del tensor
        watch.wait()
        second = Watch(1)
        engine.start(Request(1, one_layer(lambda inputs: [1]), (None,), on_done=second))
        second.wait()
        gc.collect()
        assert reference() is None


def test_a_recorder_gets_one_span_for_each_layer_and_if_it_fails_costs_only_that(caplog):
    spans, graph = [], random_graph(random.Random(1), 7)

    class Recorder:
        def add(self, span):
            spans.append(span)
            raise OSError("disk full")

    results = served(random_platform(random.Random(1)), "paper", [adding(graph)], recorder=Recorder())
    assert results[0] == (expected(graph, 0.0), None)
    assert "disk full" in caplog.text
    assert sorted(span.name for span in spans) == sorted(f"network/{layer.name}" for layer in graph.layers)
    assert all(span.end_s >= span.start_s and span.details["device"] in ("cpu", "gpu") for span in spans)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_worker_outlives_what_is_called_at_the_end_of_a_request(kind, caplog):
    def ends(request, outputs, error):
        raise kind

    watch, graph = Watch(1), one_layer(lambda inputs: [1])
    with Engine(ONE_CPU, "cpu_only") as engine:
        engine.start(Request(0, graph, (None,), on_done=ends))
        engine.start(Request(1, graph, (None,), on_done=watch))
        watch.wait()
    assert watch.results == {1: ((1,), None)}
    assert "on_done of request 0 failed" in caplog.text


def test_what_fails_while_jobs_are_moved_fails_no_request(caplog):
    class Broken(Movable):
        def tail_s(self, request, index, device, board):
            raise RuntimeError("no idea")

    rng = random.Random(2)
    graphs = [random_graph(rng, 4, name=f"n{i}") for i in range(4)]
    slow = [adding(graph, delays=[1e-3] * 4) for graph in graphs]
    results = served(Platform((Device("cpu", "cpu"), Device("gpu", "gpu"))), Broken(), slow, 1.0)
    for number, graph in enumerate(graphs):
        assert results[number] == (expected(graph, 1.0), None)
    assert "waiting jobs stay where they are" in caplog.text


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(sorted(POLICIES)))
def test_every_layer_once_in_one_form_after_what_it_reads(seed, policy):
    rng = random.Random(seed)
    graphs = [with_pieces(random_graph(rng, rng.randint(1, 12), name=f"n{i}")) for i in range(3)]
    arrivals = [Arrival(graph, rng.uniform(0, 0.02), rng.randint(-1, 2)) for graph in graphs]
    platform, costs = random_platform(rng), random_costs(rng, *graphs)
    loads = {"gpu": BackgroundLoad(rng.uniform(0, 0.9), rng.uniform(0, 1))}
    result = simulate(arrivals, platform, policy, costs, loads=loads)
    for number, graph in enumerate(graphs):
        jobs = [job for job in result.jobs if job.request == number]
        ends = {job.layer: job.end_s for job in jobs}
        form = graph if jobs[0].layer in {layer.name for layer in graph.layers} else graph.pieces
        assert sorted(ends) == sorted(layer.name for layer in form.layers)
        assert len(jobs) == len(ends)
        starts = {job.layer: job.start_s for job in jobs}
        for node in form.layers:
            reads = {form.layers[port.source].name for port in node.inputs if port.source >= 0}
            assert all(ends[source] <= starts[node.name] + 1e-12 for source in reads)
        assert all(job.start_s >= arrivals[number].time_s for job in jobs)
        assert result.finish_s[number] == max(ends.values())
    for device in platform.devices:
        jobs = [job for job in result.jobs if job.device == device.name]
        changes = sorted((at, by) for job in jobs for at, by in ((job.start_s, 1), (job.end_s, -1)))
        assert max(itertools.accumulate(by for _, by in changes), default=0) <= device.slots


@pytest.mark.parametrize(("slots", "in_pieces"), [(1, 0), (2, 1), (4, 2), (9, 4)])
def test_requests_that_find_idle_cores_run_in_pieces(slots, in_pieces):
    graph = with_pieces(chain("n", 1, 1))
    platform = Platform((Device("cpu", slots=slots),))
    result = simulate([Arrival(graph)] * 6, platform, "cpu_only", lambda *_: 1.0)
    assert len({job.request for job in result.jobs if "join" in job.layer}) == in_pieces


def test_a_controller_keeps_what_will_be_read_and_nothing_else():
    made = weakref.WeakValueDictionary()

    def tensor(name):
        made[name] = result = Tensor()
        return result

    layers = [layer("a", Port(-1)), layer("b", Port(0)), layer("c", Port(0)), layer("d", Port(1), Port(2))]
    controller = LayerController(Request(0, LayerGraph(layers, [Port(3)]), (tensor("x"),)))
    controller.request.inputs = ()
    assert controller.first() == [0]
    assert controller.complete(0, [tensor("y")]) == [1, 2]
    assert set(made) == {"y"}
    assert controller.complete(1, [tensor("p")]) == []
    assert controller.complete(2, [tensor("q")]) == [3]
    assert controller.inputs(3) == (made["p"], made["q"])
    assert controller.complete(3, ["out"]) == []
    assert set(made) == set()
    assert controller.finished
    assert controller.outputs() == ("out",)


def test_a_request_counts_the_layers_of_others_that_run_meanwhile_and_not_its_own():
    """Two layers of one request wait for each other, and then for one of another request."""
    own, other, watch = threading.Barrier(2, timeout=60), threading.Event(), Watch(2)

    def branch(inputs):
        own.wait()
        other.wait(60)
        return [0.0]

    branches = [replace(layer(name), runs={"cpu": branch}) for name in "ab"]
    both = LayerGraph(branches, [Port(0), Port(1)])
    with Engine(Platform((Device("cpu", slots=3),))) as engine:
        first = Request(0, both, on_done=watch)
        engine.start(first)
        second = Request(1, one_layer(lambda inputs: [other.set()]), on_done=watch)
        engine.start(second)
        watch.wait()
    assert 0.0 < second.beside_s <= 2 * first.ran_s
    assert 0.0 < first.beside_s < first.ran_s, "its own two layers count for nothing"
