"""The engine with real threads: every layer once, in order, whatever is placed, delayed or fails."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap_train.errors import SchedulerClosedError, SchedulingError
from overlap_train.scheduling import Device, Engine, Platform, Policy
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Request, Work
from tests.scheduling.graphs import Movable, random_graph, random_platform

ONE_CPU = Platform((Device("cpu"),))


class Anywhere(Policy):
    """Puts layers on devices at random."""

    name = "anywhere"

    def __init__(self, seed):
        self._rng = random.Random(seed)

    def select(self, request, index, places, board):
        return self._rng.choice(board.platform.devices)


class Watch:
    """Waits until a number of requests have ended."""

    def __init__(self, count):
        self.results = {}
        self.ended = Counter()
        self._left = count
        self._changed = threading.Condition()

    def __call__(self, request, outputs, error):
        with self._changed:
            self.results[request.number] = (outputs, error)
            self.ended[request.number] += 1
            self._left -= 1
            self._changed.notify_all()

    def wait(self):
        with self._changed:
            assert self._changed.wait_for(lambda: self._left <= 0, 60), "requests did not end"


def served(platform, policy, graphs, x=0.0, **options):
    """Serves one request of each graph; returns what came of each."""
    watch = Watch(len(graphs))
    with Engine(platform, policy, **options) as engine:
        for number, graph in enumerate(graphs):
            engine.start(Request(number, graph, (x,), on_done=watch))
        watch.wait()
        assert not engine._controllers
    assert set(watch.ended.values()) == {1}
    return watch.results


def adding_graph(graph, log=None, failing=(), delays=None):
    """Each layer returns the sum of its inputs plus its number + 1, on every output."""
    layers = []
    for index, layer in enumerate(graph.layers):

        def run(inputs, index=index, layer=layer):
            if delays:
                threading.Event().wait(delays[index])
            if log is not None:
                log.append((graph.name, index))
            if index in failing:
                raise RuntimeError(f"layer {index} broke")
            return [sum(inputs) + index + 1 for _ in layer.output_bytes]

        layers.append(replace(layer, runs={"cpu": run, "gpu": run}))
    return LayerGraph(layers, graph.outputs, input_bytes=graph.input_bytes, name=graph.name)


def expected(graph, x):
    values = {}
    for index, layer in enumerate(graph.layers):
        values[index] = sum(x if p.source < 0 else values[p.source] for p in layer.inputs) + index + 1
    return tuple(values[port.source] for port in graph.outputs)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6))
def test_every_layer_runs_once_after_its_inputs_whatever_the_placement(seed, count):
    rng = random.Random(seed)
    graphs = [random_graph(rng, rng.randint(1, 25), name=f"n{i}") for i in range(count)]
    delays = [rng.choice((0, 0, 0, 1e-4, 1e-3)) for _ in range(25)]
    logs = [[] for _ in graphs]
    running = [adding_graph(g, log, delays=delays) for g, log in zip(graphs, logs, strict=True)]
    results = served(random_platform(rng), Anywhere(seed), running, float(seed))
    for number, graph in enumerate(graphs):
        assert results[number] == (expected(graph, float(seed)), None)
        order = [index for _, index in logs[number]]
        assert sorted(order) == list(range(len(graph)))
        position = {index: place for place, index in enumerate(order)}
        for index, before in enumerate(graph.predecessors):
            assert all(position[source] < position[index] for source in before)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_failing_layer_ends_its_request_and_no_other(seed):
    rng = random.Random(seed)
    graphs = [random_graph(rng, rng.randint(2, 15), name=f"n{i}") for i in range(5)]
    broken = {number: rng.randrange(len(graph)) for number, graph in enumerate(graphs) if number % 2}
    running = [adding_graph(g, failing=(broken[n],) if n in broken else ()) for n, g in enumerate(graphs)]
    results = served(random_platform(rng), Anywhere(seed), running)
    for number, graph in enumerate(graphs):
        outputs, error = results[number]
        if number in broken:
            assert outputs is None
            assert str(error) == f"layer {broken[number]} broke"
        else:
            assert (outputs, error) == (expected(graph, 0.0), None)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_close_at_any_moment_ends_every_request_once_and_every_thread(seed):
    rng = random.Random(seed)
    graphs = [random_graph(rng, rng.randint(1, 20), name=f"n{i}") for i in range(6)]
    watch = Watch(6)
    before = threading.active_count()
    engine = Engine(random_platform(rng), Anywhere(seed))
    delays = [rng.choice((0, 1e-4, 1e-3)) for _ in range(20)]
    for number, graph in enumerate(graphs):
        engine.start(Request(number, adding_graph(graph, delays=delays), (0.0,), on_done=watch))
    threading.Event().wait(rng.uniform(0, 0.01))
    engine.close()
    engine.close()
    watch.wait()
    assert set(watch.ended.values()) == {1}
    for number, graph in enumerate(graphs):
        outputs, error = watch.results[number]
        assert isinstance(error, SchedulerClosedError) or outputs == expected(graph, 0.0)
    assert threading.active_count() == before
    with pytest.raises(SchedulerClosedError):
        engine.start(Request(99, adding_graph(graphs[0]), (0.0,)))


def one_layer(run, name="one"):
    return LayerGraph(
        [Layer(f"{name}/0", Work("conv"), (Port(-1),), (0,), {"cpu": run})], [Port(0)], name=name
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
    with Engine(ONE_CPU, aging_s=1.0) as engine:
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
    class Tensor:
        pass

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


def test_a_layer_that_returns_too_few_tensors_fails_its_request():
    results = served(ONE_CPU, "cpu_only", [one_layer(lambda inputs: [])])
    assert isinstance(results[0][1], SchedulingError)


def test_a_recorder_gets_one_span_for_each_layer():
    spans, graph = [], random_graph(random.Random(1), 7)
    recorder = SimpleNamespace(add=spans.append)
    served(random_platform(random.Random(1)), "paper", [adding_graph(graph)], recorder=recorder)
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


def test_a_recorder_that_fails_costs_only_its_span(caplog):
    class Recorder:
        def add(self, span):
            raise OSError("disk full")

    results = served(ONE_CPU, "cpu_only", [one_layer(lambda inputs: [7])] * 2, recorder=Recorder())
    assert [results[n] for n in range(2)] == [((7,), None)] * 2
    assert "disk full" in caplog.text


def test_tensors_cross_between_devices_by_reference():
    seen = []

    def run(inputs):
        seen.append(inputs[0])
        return [inputs[0]]

    layers = [Layer(str(i), Work("conv"), (Port(i - 1),), (8,), {"cpu": run, "gpu": run}) for i in range(10)]
    tensor = object()
    results = served(random_platform(random.Random(0)), Anywhere(1), [LayerGraph(layers, [Port(9)])], tensor)
    assert results[0][0][0] is tensor
    assert all(each is tensor for each in seen)


def test_what_fails_while_jobs_are_moved_fails_no_request(caplog):
    class Broken(Movable):
        def tail_s(self, request, index, device, board):
            raise RuntimeError("no idea")

    rng = random.Random(2)
    graphs = [random_graph(rng, 4, name=f"n{i}") for i in range(4)]
    slow = [adding_graph(graph, delays=[1e-3] * 4) for graph in graphs]
    results = served(Platform((Device("cpu", "cpu"), Device("gpu", "gpu"))), Broken(), slow, 1.0)
    for number, graph in enumerate(graphs):
        assert results[number] == (expected(graph, 1.0), None)
    assert "waiting jobs stay where they are" in caplog.text


def test_an_engine_that_cannot_start_all_its_workers_leaves_none(monkeypatch):
    before, start = set(threading.enumerate()), threading.Thread.start

    def refuse_the_third(thread):
        if thread.name == "layer-worker-CPU-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    with pytest.raises(RuntimeError, match="thread 3 of the devices' slots could not be started"):
        Engine(Platform((Device("CPU", slots=4),)))
    assert set(threading.enumerate()) <= before
