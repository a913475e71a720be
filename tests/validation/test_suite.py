"""A suite starts the sets whose turn it is, merges their parts, and does on an error what the policy says."""

from __future__ import annotations

import keras
import pytest

from overlap_train._snapshot import Snapshot, Values
from overlap_train._validation.live import LiveRunner
from overlap_train._validation.named_runner import NamedRunner
from overlap_train._validation.pending import PendingEpoch
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import ValidationWorkerError
from overlap_train.records import ValidationResult
from tests.parallel.together import on_hosts
from tests.validation.runners import EndedByTest, suite_of

VALUES = Values((), (), (), ())
FAILED = ZeroDivisionError("by nothing")


def snapshot_at(epoch):
    return Snapshot(epoch, 10 * epoch, VALUES)


def pending(suite, epoch=0):
    snapshot = snapshot_at(epoch)
    return PendingEpoch(snapshot, {}, suite.start(snapshot))


class Pool:
    """Notes what is let on and held."""

    def __init__(self, idle=True):
        self.told, self.idle = [], idle

    def admit(self, most, after_s=0.0):
        self.told.append(("admit", most, after_s > 0))

    def hold(self, seconds):
        self.told.append("hold")


def live_runner(validate, on_span=lambda span: None):
    class State:
        def read_metrics(self):
            return ("of the training",)

        def set_metrics(self, values):
            assert values == ("of the training",)

    return LiveRunner(validate, "it draws", State(), on_span)


def test_no_set_is_no_suite():
    assert not ValidationSuite([])
    assert suite_of(EndedByTest())


def test_only_sets_whose_turn_it_is_are_started_after_an_epoch_and_all_inside_one():
    often, seldom = EndedByTest(), EndedByTest()
    suite = ValidationSuite(
        [
            NamedRunner("often", often, lambda epoch: True),
            NamedRunner("seldom", seldom, lambda epoch: epoch == 1),
        ]
    )
    assert [v.name for v in suite.start(snapshot_at(0))] == ["often"]
    assert [v.name for v in suite.start(snapshot_at(1))] == ["often", "seldom"]
    assert [v.name for v in suite.start_all(snapshot_at(0))] == ["often", "seldom"]
    assert suite.due(0)
    assert not ValidationSuite([NamedRunner("seldom", seldom, lambda epoch: epoch == 1)]).due(0)


@pytest.mark.parametrize(
    ("attribute", "of_all"), [("rewindable", True), ("runs_python", False), ("computes_here", True)]
)
def test_one_runner_decides_for_all(attribute, of_all):
    first, second = EndedByTest(), EndedByTest()
    suite = suite_of(first, second)
    setattr(first, attribute, of_all)
    setattr(second, attribute, of_all)
    assert getattr(suite, attribute) is of_all
    setattr(second, attribute, not of_all)
    assert getattr(suite, attribute) is not of_all


def test_each_set_may_keep_the_training_in_step():
    first, second = EndedByTest(), EndedByTest()
    suite = suite_of(first, second)
    assert suite.reasons == []
    second.in_step = "it draws"
    assert suite.reasons == ["it draws"]
    second.rewindable = False


def test_results_come_by_the_names_of_the_sets_with_the_spans_of_all():
    first, second = EndedByTest(), EndedByTest()
    suite = suite_of(first, second)
    waiting = pending(suite, epoch=3)
    first.end(3, 0.25)
    second.end(3, 0.75)
    results, spans = suite.collect(waiting)
    assert {name: result.metrics for name, result in results.items()} == {
        "": {"loss": 0.25},
        "1": {"loss": 0.75},
    }
    assert [span.epoch for span in spans] == [3, 3]
    assert not waiting.skipped


class Divided(EndedByTest):
    """A runner whose parts are merged by who collects them."""

    def __init__(self):
        super().__init__()
        self.warned = 0

    def end(self, epoch, value=0.5):
        super().end(epoch, value)
        outcome = self.futures[epoch].result()
        object.__setattr__(outcome, "whole", None)
        object.__setattr__(outcome, "result", value)

    def merge(self, results, values):
        assert values is VALUES
        return ValidationResult({"merged": results})

    def warn(self, results=()):
        self.warned += 1


def test_parts_that_no_worker_has_merged_are_merged_now():
    runner = Divided()
    suite = suite_of(runner)
    waiting = pending(suite)
    runner.end(0, 0.5)
    results, _ = suite.collect(waiting)
    assert results[""].metrics == {"merged": [0.5]}
    assert runner.warned == 1


def test_an_error_ends_the_training_unless_it_is_to_go_on():
    runner = EndedByTest()
    suite = suite_of(runner)
    waiting = pending(suite, epoch=4)
    runner.end(4, FAILED)
    with pytest.raises(ValidationWorkerError, match="validating epoch 5 failed in part 1 of 1") as raised:
        suite.collect(waiting)
    assert raised.value.__cause__ is FAILED


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


def test_live_sets_are_left_to_the_delivery():
    runner = live_runner(lambda callbacks: {"loss": 2.0})
    suite = ValidationSuite(
        [
            NamedRunner("live", runner, lambda epoch: epoch == 1),
            NamedRunner("", EndedByTest(), lambda epoch: False),
        ]
    )
    assert (suite.live_sets(0), suite.live_sets(1)) == ([], ["live"])
    assert suite.collect(pending(suite, epoch=1)) == ({}, [])
    callbacks = keras.callbacks.CallbackList([])
    assert suite.validate_live("live", snapshot_at(1), callbacks).result.metrics == {"loss": 2.0}
    assert suite.evaluate_live("live", callbacks).metrics == {"loss": 2.0}
    assert {name: r.metrics for name, r in suite.run_live_alone().items()} == {"live": {"loss": 2.0}}


def live_suite(on_error, *outcomes):
    """Returns a suite whose only set gives these, one after another, or raises them."""
    left = list(outcomes)

    def validate(callbacks):
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    runner = live_runner(validate)
    return ValidationSuite([NamedRunner("", runner, lambda epoch: True)], on_error=on_error), left


def validated(suite):
    return suite.validate_live("", snapshot_at(2), keras.callbacks.CallbackList([]))


def test_a_live_validation_that_fails_is_raised_or_left_out():
    suite, _ = live_suite("raise", FAILED)
    with pytest.raises(ValidationWorkerError, match="validating epoch 3 failed: ZeroDivisionError") as raised:
        validated(suite)
    assert raised.value.__cause__ is FAILED
    suite, left = live_suite("warn", FAILED, {"loss": 1.0})
    with pytest.warns(RuntimeWarning, match="left out: validating epoch 3 failed"):
        assert validated(suite) is None
    assert len(left) == 1


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_what_a_callback_raises_in_between_is_its_own(on_error):
    class Prunes(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            raise KeyError("pruned")

    runner = live_runner(lambda callbacks: callbacks.on_test_begin())
    suite = ValidationSuite([NamedRunner("", runner, lambda epoch: True)], on_error=on_error)
    with pytest.raises(KeyError, match="pruned"):
        suite.validate_live("", snapshot_at(0), keras.callbacks.CallbackList([Prunes()]))


def test_workers_are_held_and_let_on_and_functions_are_never_counted():
    shared, function = Pool(), Pool()
    suite = suite_of(EndedByTest(), pool=shared)
    assert suite.shares_cores
    suite.add_function(NamedRunner("f", EndedByTest(), lambda epoch: True), function)
    assert not suite.shares_cores
    suite.hold()
    suite.admit(1)
    suite.admit_beside(2)
    assert shared.told == ["hold", ("admit", 1, False), ("admit", 2, True)]
    assert function.told == ["hold", ("admit", None, False), ("admit", None, True)]


def test_it_is_idle_when_all_its_workers_are():
    function = Pool()
    suite = suite_of(EndedByTest())
    assert suite.idle
    assert not suite.shares_cores
    suite.add_function(NamedRunner("f", EndedByTest(), lambda epoch: True), function)
    suite.add_function(NamedRunner("in step", EndedByTest(), lambda epoch: True), None)
    assert suite.idle
    function.idle = False
    assert not suite.idle


def test_a_check_goes_to_each_set_and_what_is_left_is_closed():
    class Checked(EndedByTest):
        def __init__(self):
            super().__init__()
            self.checked, self.closed = [], 0

        def evaluate_one_batch(self, values):
            self.checked.append(values)

        def evaluate(self, values, most=None):
            return ValidationResult({"loss": 3.0 if most is None else float(most)})

        def close(self):
            self.closed += 1

    first, second = Checked(), Checked()
    suite = suite_of(first, second)
    suite.sanity_check(VALUES)
    suite.check("1", VALUES)
    assert (len(first.checked), len(second.checked)) == (1, 2)
    assert suite.evaluate("", VALUES).metrics == {"loss": 3.0}
    assert suite.evaluate("", VALUES, 2).metrics == {"loss": 2.0}
    assert not suite.draws_anew("")
    suite.close()
    assert (first.closed, second.closed) == (1, 1)
