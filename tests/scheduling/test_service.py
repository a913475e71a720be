"""Submissions wait, are batched, begin as there is room, and get their own results or errors."""

import pickle
import time
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from overlap_train.errors import DeadlineError, QueueFullError, SchedulingError
from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.accounts import RunTimes
from overlap_train.scheduling.service import Model, Service, Submission, Waiting
from tests.scheduling.graphs import chain


def batches(*submissions, lanes=1, **options):
    """The numbers of the submissions in each batch, from (model, arrival, rows, columns, more) each."""
    waiting, numbers = Waiting(lanes), {}
    for number, (name, arrival_s, rows, columns, more) in enumerate(submissions):
        model = waiting.models.setdefault(name, Model(name, None, None, None, **options))
        made = Submission(model, (np.zeros((rows, columns)),), rows, Future(), arrival_s, **more)
        model.waiting.append(made)
        numbers[id(made)] = number
    assert len(waiting) == len(submissions)
    return [[numbers[id(each)] for each in batch] for batch in iter(waiting.next_batch, [])]


BATCHES = {
    "the most urgent of all models first": (
        [("a", 5.0, 1, 2, {}), ("b", 6.0, 1, 2, {"priority": 2}), ("a", 9.0, 1, 2, {"deadline_s": 3.0})],
        {},
        [[2], [1], [0]],
    ),
    "no more examples than may be, of one shape": (
        [("m", float(n), rows, 3 if n == 2 else 2, {}) for n, rows in enumerate((2, 2, 1, 4, 1))],
        {"max_batch": 5},
        [[0, 1, 4], [2], [3]],
    ),
    "larger than a batch": ([("m", 0.0, 7, 2, {}), ("m", 1.0, 1, 2, {})], {"max_batch": 2}, [[0], [1]]),
    "work for every core at the end": (
        [("m", float(n), 1, 2, {}) for n in range(12)],
        {"max_batch": 4, "lanes": 2},
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10], [11]],
    ),
}


@pytest.mark.parametrize(("submissions", "options", "expected"), BATCHES.values(), ids=BATCHES)
def test_what_waits_is_batched_by_urgency_shape_and_room(submissions, options, expected):
    assert batches(*submissions, **options) == expected


CORE = (Device("cpu"),)


class Engine:
    """Runs nothing: a test ends what has been started."""

    def __init__(self, devices=CORE):
        self.platform, self.started, self.closed, self.fails = Platform(devices), [], 0, None

    def start(self, request):
        if self.fails is not None:
            raise self.fails
        self.started.append(request)

    def end(self, request, error=None):
        outputs = None if error is not None else [SimpleNamespace(numpy=lambda: request.inputs[0] * 2)]
        request.on_done(request, outputs, error)

    def statistics(self):
        return {"cpu": SimpleNamespace(busy_s=0.0, overhead_s=0.0)}

    def close(self):
        self.closed += 1


class Scene:
    def __init__(self, *, max_active=None, max_batch=1, devices=CORE, **options):
        self.engine = Engine(devices)
        self.service = Service(self.engine, lambda arrays: arrays, max_active=max_active)
        self.model = Model(
            "m", chain("m", 1), None, lambda outputs: outputs[0].tolist(), max_batch=max_batch, **options
        )
        self.service.add(self.model)

    def submit(self, value=1.0, *, timeout_s=0.0, within_s=None, **options):
        future = Future()
        x = np.full((1, 1), value)
        now_s = time.monotonic()
        if within_s is not None:
            options["deadline_s"] = now_s + within_s
        self.service.submit(Submission(self.model, (x,), 1, future, now_s, **options), timeout_s)
        return future

    @property
    def counts(self):
        return self.service.statistics().models["m"]


def test_those_that_run_together_have_the_urgency_of_the_most_urgent():
    scene = Scene(max_active=1, max_batch=4)
    scene.submit()
    futures = [scene.submit(2.0, deadline_s=-20.0), scene.submit(3.0, priority=5), scene.submit(4.0)]
    scene.engine.end(scene.engine.started[0])
    request = scene.engine.started[1]
    assert (request.examples, request.priority, request.deadline_s) == (3.0, 5, -20.0)
    scene.engine.end(request)
    assert [future.result(0) for future in futures] == [[[4.0]], [[6.0]], [[8.0]]]
    assert scene.counts.batches == 2


def test_what_cannot_be_done_in_time_is_refused_at_once_with_the_time_that_it_would_take():
    scene = Scene(max_active=1, run_times=RunTimes({1: 10.0}))
    scene.submit()
    late = {"on_late": "reject", "within_s": 19.0}
    with pytest.raises(
        DeadlineError, match=r"a request for 'm' would be done after 20 s, and 19 s are"
    ) as raised:
        scene.submit(**late)
    assert raised.value.predicted_s == pytest.approx(20.0, abs=0.5)
    assert pickle.loads(pickle.dumps(raised.value)).predicted_s == raised.value.predicted_s
    in_time = scene.submit(**(late | {"within_s": 21.0}))
    assert (scene.counts.submitted, scene.counts.refused) == (2, 1)
    for request in scene.engine.started:  # those that follow join the list
        scene.engine.end(request)
    assert in_time.result(0) == [[2.0]]
    assert (scene.counts.met, scene.counts.missed) == (1, 0)


def test_nothing_is_admitted_that_would_make_an_admitted_request_late():
    scene = Scene(max_active=1, run_times=RunTimes({1: 10.0}))
    scene.submit()
    scene.submit(on_late="reject", within_s=25.0)
    with pytest.raises(DeadlineError) as raised:  # it would be first, and the other late
        scene.submit(on_late="reject", within_s=22.0, priority=1)
    assert raised.value.predicted_s == pytest.approx(30.0, abs=0.5), "behind the other"
    scene.submit(on_late="reject", within_s=35.0)


@pytest.mark.parametrize(("seconds_of_two", "joined"), [(11.0, True), (16.0, False)])
def test_a_batch_takes_in_none_that_would_make_an_admitted_request_late(seconds_of_two, joined):
    scene = Scene(max_active=1, max_batch=2, run_times=RunTimes({1: 10.0, 2: seconds_of_two}))
    scene.submit()
    scene.submit(on_late="reject", within_s=25.0)
    scene.submit()
    scene.model.run_times = RunTimes({1: 10.0, 2: seconds_of_two + 10.0})  # the first has taken no time
    scene.engine.end(scene.engine.started[0])
    assert scene.engine.started[1].examples == (2.0 if joined else 1.0)


def test_an_error_reaches_all_of_a_batch_and_no_other():
    scene = Scene(max_active=1, max_batch=2)
    good = scene.submit()
    bad = [scene.submit(), scene.submit()]
    scene.engine.end(scene.engine.started[0])
    scene.engine.end(scene.engine.started[1], ZeroDivisionError())
    assert good.result(0) == [[2.0]]
    assert all(isinstance(future.exception(0), ZeroDivisionError) for future in bad)
    assert (scene.counts.completed, scene.counts.failed) == (1, 2)


@pytest.mark.parametrize("where", ["the engine", "the pack"])
def test_what_fails_before_or_after_the_layers_is_told_too(where):
    scene = Scene(max_active=1)
    if where == "the engine":
        scene.engine.fails = KeyError("full")
        future = scene.submit()
    else:
        scene.model.pack = lambda outputs: {}["none"]
        future = scene.submit()
        scene.engine.end(scene.engine.started[0])
    assert isinstance(future.exception(0), KeyError)
    scene.engine.fails = None
    scene.submit()
    assert len(scene.engine.started) == (1 if where == "the engine" else 2), "its place is free again"


def ends(kind):
    def callback(future):
        raise kind

    return callback


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_ends_its_thread_keeps_nobody_waiting(kind, caplog):
    scene = Scene(max_active=1, max_batch=3)
    first, *others = [scene.submit(value) for value in (1.0, 2.0, 3.0, 4.0)]
    for future in (first, others[0]):
        future.add_done_callback(ends(kind))
    for request in scene.engine.started:  # those that follow join the list
        scene.engine.end(request)
    assert [future.result(timeout=0) for future in others] == [[[4.0]], [[6.0]], [[8.0]]]
    scene.service.drain()
    assert caplog.text.count("a callback of a future failed") == 2


WAITS = {
    "remove": lambda scene: scene.service.remove(scene.model),
    "drain": lambda scene: scene.service.drain(),
    "submit": lambda scene: [scene.submit(timeout_s=None) for _ in range(scene.model.max_pending + 1)],
}


@pytest.mark.parametrize("method", WAITS)
def test_a_callback_waits_for_nothing(method):
    scene, raised = Scene(max_active=1, max_pending=2), []

    def call(future):
        with pytest.raises((SchedulingError, QueueFullError)) as caught:
            WAITS[method](scene)
        raised.append(caught.type)

    scene.submit().add_done_callback(call)
    for request in scene.engine.started:  # those that follow join the list
        scene.engine.end(request)
    over = scene.submit()
    scene.engine.end(scene.engine.started[-1])
    over.add_done_callback(lambda future: scene.service.drain())  # on the caller's own thread, which may
    assert raised == [QueueFullError if method == "submit" else SchedulingError]
    scene.service.remove(scene.model)  # the callback is over


def test_who_takes_a_model_out_leaves_one_of_its_name_that_came_after():
    scene = Scene(max_active=1)
    scene.service.remove(scene.model)
    scene.service.add(Model("m", scene.model.graph, None, scene.model.pack))
    scene.service.remove(scene.model)  # as another thread would that has waited for the same
    assert scene.service.model("m") is not scene.model


def test_runs_next_to_others_are_predicted_by_such_runs():
    times = RunTimes({1: 1.0}, {1: 1.5})
    assert [times.typical_s(0.0, 1, beside=beside) for beside in (False, True)] == [1.0, 1.5]
    assert times.longest_s(0.0, 1) == 1.5
    times.add(0.0, 1, 0.8)
    assert [times.typical_s(1.0, 1, beside=beside) for beside in (False, True)] == [0.8, 1.5]
    assert times.longest_s(1.0, 1) == 0.8, "what is measured at first refuses nothing for ever"
    times.add(1.0, 1, 1.8, beside=True)
    assert [times.typical_s(1.0, 1, beside=beside) for beside in (False, True)] == [0.8, 1.8]
    assert times.longest_s(1.0, 1) == 1.8


@pytest.mark.parametrize(("beside_s", "typical_s"), [(0.6, 1.5), (0.4, 1.0)])
def test_what_begins_next_to_others_or_behind_such_a_run_is_expected_to_be_slower(beside_s, typical_s):
    waiting, now_s = Waiting(lanes=2), time.monotonic()
    models = [Model(name, None, None, None, run_times=RunTimes({1: 1.0}, {1: 1.5})) for name in "abc"]
    made = [Submission(model, (), 1, Future(), now_s) for model in models]
    first, second = waiting.begin(made[:1], now_s), waiting.begin(made[1:2], now_s)
    assert [first.typical_s, second.typical_s] == [1.0, 1.5]
    waiting.end(first, None)
    second.request = SimpleNamespace(ran_s=1.0, beside_s=beside_s, began={})
    waiting.end(second, None)
    assert waiting.begin(made[2:], now_s).typical_s == typical_s


def test_what_is_dropped_would_be_late_next_to_what_runs():
    scene = Scene(max_active=1, devices=(Device("cpu", slots=2),), run_times=RunTimes({1: 1.0}, {1: 9.0}))
    in_time = scene.submit(within_s=5.0, on_late="drop")
    late = scene.submit(within_s=5.0, on_late="drop")
    assert isinstance(late.exception(0), DeadlineError)
    scene.engine.end(scene.engine.started[0])
    assert in_time.result(0) == [[2.0]]


def test_recent_runs_predict_the_next_and_the_first_measurement_does_where_there_are_none():
    times = RunTimes({1: 1.0, 4: 2.0})
    assert [times.typical_s(0.0, count) for count in (1, 2, 4, 8)] == [1.0, 2.0, 2.0, 4.0]
    for seconds in (3.0, 5.0, 4.0):
        times.add(100.0, 1, seconds)
    assert (times.typical_s(105.0, 1), times.longest_s(105.0, 1)) == (4.0, 5.0)
    assert times.typical_s(111.0, 1) == 1.0, "a load that has gone refuses nothing for ever"
    assert RunTimes().longest_s(0.0, 3) == 0.0
