"""A suite starts the sets whose turn it is, waits within bounds, merges them and says what failed."""

from concurrent.futures import Future

import keras
import pytest
import tensorflow as tf

from overlap_train._snapshot import Snapshot, Values
from overlap_train._validation.evaluation import ShardResult
from overlap_train._validation.live import LiveRunner
from overlap_train._validation.pending import NamedRunner, PendingEpoch, PendingValidation, Runner
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import ValidationTimeoutError, ValidationWorkerError
from overlap_train.records import ShardOutcome, Span, ValidationResult
from tests.parallel.together import on_hosts

VALUES = Values((), (), (), ())

FAILED = ZeroDivisionError("by nothing")


class EndedByTest(Runner):
    """A runner whose validations end when the test says so."""

    draws_anew = runs_python = False

    def __init__(self):
        self.futures = {}

    def start(self, snapshot):
        self.futures[snapshot.epoch] = future = Future()
        return [future]

    def end(self, epoch, value=0.5):
        """Ends the validation of an epoch with a loss, or with an exception."""
        if isinstance(value, BaseException):
            self.futures[epoch].set_exception(value)
            return
        span = Span("validate", "validation-0", 1.0, 2.0, epoch)
        self.futures[epoch].set_result(ShardOutcome(ValidationResult({"loss": value}), span))


def suite_of(*runners, **options):
    """Returns a suite of sets called "", "1", "2", each of which is validated in each epoch."""
    names = ("", *map(str, range(1, len(runners))))
    named = [
        NamedRunner(name, runner, lambda epoch: True) for name, runner in zip(names, runners, strict=True)
    ]
    return ValidationSuite(named, **options)


def snapshot_at(epoch):
    return Snapshot(epoch, 10 * epoch, VALUES)


def pending(suite, epoch=0):
    snapshot = snapshot_at(epoch)
    return PendingEpoch(snapshot, {}, suite.start(snapshot))


def live_runner(validate):
    class State:
        def read_metrics(self):
            return ("of the training",)

        def set_metrics(self, values):
            assert values == ("of the training",)

    return LiveRunner(validate, State(), lambda span: None, "it draws")


def test_on_error_warn_leaves_out_the_set_that_failed():
    good, bad = EndedByTest(), EndedByTest()
    suite = suite_of(good, bad, on_error="warn")
    waiting = pending(suite)
    good.end(0)
    bad.end(0, FAILED)
    with pytest.warns(RuntimeWarning, match="left out: validating epoch 1 on set '1' failed"):
        results, _ = suite.collect(waiting)
    assert list(results) == [""]
    assert waiting.skipped


def test_what_fails_on_one_host_ends_the_validation_on_all():
    def work(host):
        runner = EndedByTest()
        suite = suite_of(runner, hosts=host)
        waiting = pending(suite, epoch=2)
        runner.end(2, FAILED if host.index else 0.5)
        return suite.collect(waiting)

    other, own = on_hosts(work)
    assert isinstance(own, ValidationWorkerError)
    assert own.__cause__ is FAILED
    assert isinstance(other, ValidationWorkerError)
    assert str(other).startswith("on host 1: validating epoch 3 failed")
    assert (other.epoch, other.shard) == (2, 0)


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_live_validation_that_fails_raises_as_keras_s_or_is_left_out(on_error):
    def validate(callbacks):
        raise FAILED

    suite = suite_of(live_runner(validate), on_error=on_error)
    left_out = pytest.warns(RuntimeWarning, match="left out: validating epoch 3 failed: ZeroDivisionError")
    raised = pytest.raises(ZeroDivisionError, match="by nothing")
    with left_out if on_error == "warn" else raised:
        assert suite.validate_live("", snapshot_at(2), keras.callbacks.CallbackList([])) is None


def outcome(index):
    return ShardOutcome(ShardResult((), {}, 1), Span("validate", "w", 0.0, 1.0, 4, 9, {"shard": index}))


def epoch_of(parts):
    futures = [Future() for _ in range(parts)]
    validation = PendingValidation(4, "", futures)
    return PendingEpoch(Snapshot(4, 9, VALUES), {}, [validation]), futures


def test_a_wait_that_is_too_long_says_how_far_it_came_and_what_to_do():
    epoch, futures = epoch_of(2)
    futures[0].set_result(outcome(0))
    with pytest.raises(ValidationTimeoutError, match=r"epoch 5 .*timeout_s=0.001.*1 of 2 .*raise Validation"):
        epoch.wait(0.001, lambda: None)


PREAMBLE = (
    "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):\n"
    "<stack traces unavailable>\n"
)


def of_tensorflow(text):
    return tf.errors.UnknownError(None, None, text)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError(), "(no message)"),
        (ValueError("x" * 5000), "x" * 300),
        (
            of_tensorflow(f"{PREAMBLE}OSError: disk gone\nTraceback (most recent call last):"),
            "OSError: disk gone",
        ),
        (of_tensorflow(f"{PREAMBLE}2 root error(s) found.\n  (0) UNKNOWN:  disk gone\n"), "disk gone"),
        (of_tensorflow("Graph execution error:"), "Graph execution error:"),
    ],
)
def test_the_message_shows_the_cause_and_not_the_preamble_of_tensorflow(error, shown):
    epoch, futures = epoch_of(1)
    futures[0].set_exception(error)
    with pytest.raises(ValidationWorkerError) as info:
        epoch.validations[0].outcomes()
    assert str(info.value) == f"validating epoch 5 failed in part 1 of 1: {type(error).__name__}: {shown}"
