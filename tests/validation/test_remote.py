"""The evaluator as the chief sees it: what is sent, what comes back, and what happens when it is lost."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf
from overlap_train._validation.remote import RemoteEvaluator, RemoteRunner
from overlap_train.parallel.link import MisunderstoodError

from overlap_train._snapshot import Snapshot, Values
from overlap_train.errors import HostLostError
from overlap_train.parallel.hosts import SingleHost
from tests.parallel.together import on_hosts

WAIT_S = 60
KERNEL = tf.constant([[1.0, 2.0]])
VALUES = Values((KERNEL,), (), (), ())
RESULT = {"kind": "result", "metrics": {"loss": 0.5}, "running": []}


class Link:
    """The other end gives these answers, one after another, or is lost."""

    def __init__(self, *answers):
        self.answers, self.sent, self.closed, self.aborted = list(answers), [], 0, 0

    def send(self, message, arrays):
        self.sent.append((dict(message), [np.asarray(array) for array in arrays]))

    def receive(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, []

    def close(self):
        self.closed += 1

    def abort(self):
        self.aborted += 1


@pytest.fixture
def evaluator():
    """Returns a function that makes an evaluator, which is ended afterwards, and its spans."""
    made = []

    def make(link, **options):
        spans = []
        made.append(RemoteEvaluator(link, spans.append, **options))
        return made[-1], spans

    yield make
    for remote in made:
        remote.end({"kind": "failed"})


def test_a_snapshot_is_sent_with_its_weights_and_comes_back_as_metrics(evaluator):
    link = Link({**RESULT, "running": [{"loss": 0.75}, {"confusion": [[1, 2]]}]})
    remote, spans = evaluator(link)
    outcome = remote.validate("clean", Snapshot(3, 40, VALUES)).result(WAIT_S)
    ((message, (kernel,)),) = link.sent
    assert message == {"kind": "validate", "set": "clean", "epoch": 3}
    np.testing.assert_array_equal(kernel, KERNEL)
    assert outcome.result.metrics == {"loss": 0.5}
    first, second = outcome.result.running
    assert first.logs == {"loss": 0.75}
    np.testing.assert_array_equal(second.logs["confusion"], [[1, 2]])
    assert spans == [outcome.span]
    assert (outcome.span.epoch, outcome.span.step, outcome.span.thread) == (3, 40, "validation-link-0")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "int32"])
@pytest.mark.parametrize("value", [1.0, [1.0, 2.0]], ids=str)
def test_weights_of_any_type_are_sent(dtype, value, evaluator):
    weight = tf.cast(value, dtype)
    link = Link(RESULT)
    remote, _ = evaluator(link)
    remote.validate("clean", Snapshot(3, 40, Values((weight,), (weight,), (), ()))).result(WAIT_S)
    ((_, sent),) = link.sent
    for each in sent:
        assert (each.dtype, each.shape) == (weight.dtype.as_numpy_dtype, weight.shape)
        assert each.tobytes() == weight.numpy().tobytes()


def test_snapshots_are_sent_one_after_another(evaluator):
    link = Link(RESULT, {**RESULT, "metrics": {"loss": 0.25}})
    remote, _ = evaluator(link)
    futures = [remote.validate("", Snapshot(epoch, 0, VALUES)) for epoch in (1, 2)]
    assert [future.result(WAIT_S).result.metrics["loss"] for future in futures] == [0.5, 0.25]
    assert [message["epoch"] for message, _ in link.sent] == [1, 2]


def test_what_the_evaluator_raised_is_raised_here(evaluator):
    remote, spans = evaluator(Link({"kind": "error", "error": "x" * 5000}))
    with pytest.raises(RuntimeError, match="on the evaluator: x") as raised:
        remote.validate("", Snapshot(0, 0, VALUES)).result(WAIT_S)
    assert len(str(raised.value)) < 3100
    assert spans == []


@pytest.mark.parametrize("answer", [{"kind": "other"}, {"kind": "result"}, {**RESULT, "running": None}])
def test_an_answer_that_is_none_is_not_taken_for_one(evaluator, answer):
    remote, _ = evaluator(Link(answer))
    with pytest.raises(MisunderstoodError, match="the evaluator cannot be understood"):
        remote.validate("", Snapshot(0, 0, VALUES)).result(WAIT_S)


def test_a_check_waits_for_its_answer(evaluator):
    link = Link({"kind": "result"}, {"kind": "error", "error": "no such set"})
    remote, _ = evaluator(link)
    remote.check("clean", VALUES)
    assert link.sent[0][0] == {"kind": "check", "set": "clean"}
    with pytest.raises(RuntimeError, match="no such set"):
        remote.check("clean", VALUES)


def test_the_end_is_told_once_with_the_last_weights():
    link = Link()
    remote = RemoteEvaluator(link, print)
    remote.end({"kind": "end", "ended": "completed"}, VALUES)
    ((message, (kernel,)),) = link.sent
    assert message == {"kind": "end", "ended": "completed"}
    np.testing.assert_array_equal(kernel, KERNEL)
    assert link.closed == 1


def test_whoever_has_gone_is_told_nothing_at_the_end():
    link = Link()
    link.send = lambda *_: (_ for _ in ()).throw(HostLostError("gone"))
    RemoteEvaluator(link, print).end({"kind": "failed"})
    assert link.closed == 1


LOST = HostLostError("the evaluator has gone")


@pytest.mark.parametrize("options", [{}, {"take_back": lambda *_: Link(RESULT), "return_s": 0.0}])
def test_a_lost_evaluator_ends_the_validation_where_none_is_waited_for(evaluator, options):
    remote, _ = evaluator(Link(LOST), **options)
    with pytest.raises(HostLostError, match="has gone"):
        remote.validate("", Snapshot(0, 0, VALUES)).result(WAIT_S)


class Returns:
    """Takes an evaluator back, if one comes."""

    def __init__(self, *links):
        self.links, self.timeouts = list(links), []

    def __call__(self, timeout_s, stopped):
        self.timeouts.append(timeout_s)
        assert not stopped()
        link = self.links.pop(0)
        if isinstance(link, Exception):
            raise link
        return link


@pytest.mark.filterwarnings("ignore:the evaluator has gone:RuntimeWarning")
def test_one_that_comes_back_gets_the_snapshot_again(evaluator):
    first, second = Link(LOST), Link(RESULT, RESULT)
    returns = Returns(second)
    remote, _ = evaluator(first, take_back=returns, return_s=30.0)
    for epoch in (0, 1):
        assert remote.validate("", Snapshot(epoch, 0, VALUES)).result(WAIT_S).result.metrics == {"loss": 0.5}
    assert [message["epoch"] for message, _ in second.sent] == [0, 1]
    assert (first.closed, returns.timeouts) == (1, [30.0])


def test_the_wait_for_it_is_said():
    returns = Returns(Link(RESULT))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        remote = RemoteEvaluator(Link(LOST), print, take_back=returns, return_s=30.0)
        remote.validate("", Snapshot(0, 0, VALUES)).result(WAIT_S)
        remote.end({"kind": "end"})
    (said,) = [str(w.message) for w in found if issubclass(w.category, RuntimeWarning)]
    assert said == ("the evaluator has gone; waiting up to 30 s for an evaluator that is started again")


@pytest.mark.filterwarnings("ignore:the evaluator has gone:RuntimeWarning")
def test_one_that_did_not_come_back_in_time_is_looked_for_only_briefly_from_then_on(evaluator):
    returns = Returns(HostLostError("nobody came"), HostLostError("nobody came"), Link(RESULT, LOST), LOST)
    remote, _ = evaluator(Link(LOST, LOST, LOST), take_back=returns, return_s=30.0)
    for _ in range(2):
        with pytest.raises(HostLostError, match="has gone, and has not come back: nobody came"):
            remote.validate("", Snapshot(0, 0, VALUES)).result(WAIT_S)
    remote.validate("", Snapshot(0, 0, VALUES)).result(WAIT_S)
    with pytest.raises(HostLostError):
        remote.validate("", Snapshot(0, 0, VALUES)).result(WAIT_S)
    first, second, third, fourth = returns.timeouts
    assert first == fourth == 30.0
    assert second == third < 1.0


def test_results_of_the_chief_are_those_of_all_hosts(evaluator):
    link = Link({**RESULT, "running": [{"loss": 0.75}]}, {"kind": "result"}, RESULT)
    remote, _ = evaluator(link)

    def work(host):
        runner = RemoteRunner("clean", None if host.index else remote, host, rewindable=True)
        futures = runner.start(Snapshot(1, 0, VALUES))
        assert len(futures) == (0 if host.index else 1)
        merged = runner.merge([future.result(WAIT_S).result for future in futures], VALUES)
        runner.evaluate_one_batch(VALUES)
        return merged, runner.evaluate(VALUES)

    for merged, evaluated in on_hosts(work):
        assert merged.metrics == evaluated.metrics == {"loss": 0.5}
        assert [running.logs for running in merged.running] == [{"loss": 0.75}]
    assert [message["kind"] for message, _ in link.sent] == ["validate", "check", "validate"]


@pytest.mark.parametrize("rewindable", [True, False])
def test_another_host_takes_nothing_from_this_one_and_sees_nothing_of_it(rewindable):
    runner = RemoteRunner("", None, SingleHost(), rewindable=rewindable)
    assert (runner.in_step, runner.live, runner.computes_here, runner.runs_python) == (None,) + (False,) * 3
    assert runner.rewindable is rewindable
    assert runner.start(Snapshot(0, 0, VALUES)) == []
