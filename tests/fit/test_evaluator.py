"""A training and its evaluator in two threads of one process: same numbers, losses, and what is refused.

`tests/parallel/test_evaluator.py` has them in processes of their own.
"""

import contextlib
import functools
import os
import signal
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import keras
import numpy as np
import pytest

from overlap_train import (
    CheckpointPolicy,
    EvaluationFunction,
    EvaluatorPolicy,
    Trainer,
    ValidationPolicy,
    ValidationSet,
)
from overlap_train._checkpoint import run_directory
from overlap_train._checkpoint.resume import _narrow
from overlap_train._checkpoint.run_directory import RunDirectory
from overlap_train._fit import elsewhere, evaluator, session
from overlap_train._fit.evaluator import Follower
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train.errors import (
    HostLostError,
    HostMismatchError,
    ValidationTimeoutError,
    ValidationWorkerError,
)
from overlap_train.parallel import evaluate_run
from overlap_train.parallel.cluster_hosts import EvaluatorTask
from tests import pools
from tests.fit.requests import request_of
from tests.networks import FEATURES, VALIDATION_ROWS, arrays, assert_same_history, linear, sequential
from tests.validation.counting import counting
from tests.whole_fits.test_accounts import assert_adds_up

pytestmark = pytest.mark.timeout(200)

X, Y = arrays()
CLEAN, NOISY = arrays(VALIDATION_ROWS, 1), arrays(VALIDATION_ROWS, 2)
SETS = {"clean": CLEAN, "noisy": ValidationSet(data=NOISY, freq=2)}
TASK = {"batch_size": 32, "epochs": 4, "verbose": 0}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Signs come often, so that few seconds without one mean that there is nobody."""
    monkeypatch.setattr(run_directory, "_BEAT_S", 0.05)
    monkeypatch.setattr(elsewhere, "LEAST_WAIT_S", 0.1)


def length(model):
    return {"norm": float(sum(np.sum(np.square(w)) for w in model.get_weights()))}


def fit(policy=None, model=None, callbacks=(), **arguments):
    trainer = Trainer(model or pools.sequential(), validation=policy)
    trainer.fit(X, Y, callbacks=list(callbacks), **(TASK | arguments))
    return trainer


def history(trainer):
    return trainer.model.history.history


@functools.cache
def alone():
    """Returns the history of one process that validates on CLEAN."""
    return history(fit(validation_data=CLEAN))


@contextlib.contextmanager
def evaluating(directory, *data, model=None, times=1, **options):
    """Evaluates a training on a thread during the block, again where it fails; yields what comes of it."""
    results = []
    made = [model or pools.sequential() for _ in range(times)]  # on this thread, one after the other

    def work():
        for each in made:
            try:
                results.append(evaluate_run(directory, each, *data, **{"timeout_s": 60.0} | options))
            except Exception as error:
                results.append(error)

    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(work)
        yield results
        following.result(timeout=60)


def follower(directory):
    settings = Trainer(pools.sequential())._settings()
    return Follower(directory, settings, {"": ValidationSet(CLEAN)}, {}, 1)


def files(directory, *kinds):
    return RunDirectory(directory).entries(*(kinds or ("weights", "inside", "result")))


def plateau():
    return keras.callbacks.ReduceLROnPlateau("val_clean_loss", 0.5, 1, mode="min", min_delta=0.3)


def stopping():
    return keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.1)


@pytest.mark.by_default("False")
@pytest.mark.parametrize("named", [True, False])
def test_sets_functions_steps_and_rollbacks_are_those_of_one_process(named, tmp_path):
    common = {"every_steps": 5, "functions": {"size": length}}
    one = fit(ValidationPolicy(**common), callbacks=[plateau()], validation_data=SETS)
    if not named:  # the training need not know what the evaluator evaluates
        del common["functions"]
    policy = ValidationPolicy(**common, evaluator=tmp_path)
    evaluator = pools.sequential()
    with evaluating(tmp_path, SETS, model=evaluator, functions={"size": length}) as results:
        two = fit(policy, callbacks=[plateau()], validation_data=SETS if named else None)
    assert any("back to the end of epoch" in message for message in two.messages)
    assert_same_history(history(two), history(one), 1e-6)
    for ours, theirs in zip(two.step_validations, one.step_validations, strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-6)
    assert_adds_up(two)
    assert two.account.validated_s > 0
    assert all(span.step is not None for span in two.recorder.spans() if span.name == "validate")
    assert RunDirectory(tmp_path).read_run().history == history(two)
    assert not files(tmp_path), "the directory holds no more than it needs"
    assert [results[0][epoch]["val_clean_loss"] for epoch in range(4)] == history(two)["val_clean_loss"]
    for ours, theirs in zip(evaluator.weights, two.model.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Listening(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        print(batch)


class Begins(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.on_test_batch_end = print


@pytest.mark.parametrize("callback", [Listening, Begins])
def test_a_callback_that_listens_to_the_batches_of_an_evaluator_is_refused(callback, tmp_path):
    with (
        evaluating(tmp_path, CLEAN, timeout_s=1.0),
        pytest.raises(ValueError, match="listens to the batches of validations, which an evaluator makes in"),
    ):
        fit(ValidationPolicy(evaluator=tmp_path), callbacks=[callback()])


def later(directory, **options):
    """Evaluates, behind the training, the weights that lie in a directory; returns the values by epoch."""
    return evaluate_run(directory, sequential(metrics=[top()]), CLEAN, **options)


def top():
    return keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")


@pytest.mark.nightly
def test_a_metric_added_behind_fifty_epochs_is_the_one_computed_in_them_bit_for_bit(tmp_path):
    task = {"epochs": 50, "validation_data": CLEAN}

    class Shrinks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch % 20 == 10:
                self.model.set_weights([0.9 * weight for weight in self.model.get_weights()])

    def callbacks():
        return [keras.callbacks.ReduceLROnPlateau("val_loss", 0.7, patience=1, min_delta=0.02), Shrinks()]

    one = fit(model=sequential(metrics=[top()]), callbacks=callbacks(), **task)
    policy = CheckpointPolicy(tmp_path, keep_weights="all", every_epochs=7)
    two = fit(ValidationPolicy(overlap="always"), callbacks=callbacks(), resume=policy, **task)
    assert any("back to the end of epoch" in message for message in two.messages)
    values = later(tmp_path, timeout_s=3600.0)  # it has ended
    assert list(values) == list(range(50))
    for name in ("val_loss", "val_top"):
        assert [each[name] for each in values.values()] == history(one)[name]
    assert len(list(tmp_path.glob("*.otck"))) == policy.keep


@pytest.mark.parametrize("kept", ["all", pytest.param("float16", marks=pytest.mark.nightly)])
def test_weights_are_kept_of_each_delivered_epoch_also_where_the_training_fails_in_between(kept, tmp_path):
    policy = CheckpointPolicy(tmp_path, keep_weights=kept, every_epochs=3, keep=1)
    with pytest.raises(ZeroDivisionError):
        fit(validation_data=CLEAN, callbacks=[Fails()], resume=policy)
    assert [entry.epoch for entry in files(tmp_path, "weights")] == [0, 1]  # and no checkpoint is due yet
    expected, exact = alone()["val_loss"], 0 if kept == "all" else 1e-2
    found = later(tmp_path, timeout_s=0.0)
    assert [each["val_loss"] for each in found.values()] == pytest.approx(expected[:2], rel=exact, abs=0)
    fit(validation_data=CLEAN, resume=policy)
    assert [entry.epoch for entry in files(tmp_path, "weights")] == [0, 1, 2, 3]
    found = later(tmp_path)
    assert [each["val_loss"] for each in found.values()] == pytest.approx(expected, rel=exact, abs=0)
    assert sorted(path.name[:4] for path in tmp_path.iterdir()) == [".loc", "ckpt", "eval"]


@pytest.mark.parametrize("freezes", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_weights_find_their_layers_whatever_is_trainable_on_either_side(freezes, tmp_path):
    """All layers have weights of one shape, and Keras lists trainable ones first."""

    def alike(frozen=()):
        model = linear(*[lambda: keras.layers.Dense(FEATURES, "tanh")] * 3)
        for number in frozen:
            model.layers[number].trainable = False
        model.compile("sgd", model.loss, metrics=["accuracy"])
        return model

    class Freezes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.layers[0].trainable = False

    frozen, callbacks = ((), [Freezes()]) if freezes else ((0,), [])
    one = fit(model=alike(frozen), callbacks=callbacks, validation_data=CLEAN)
    with evaluating(tmp_path, CLEAN, model=alike()):
        two = fit(ValidationPolicy(evaluator=tmp_path), alike(frozen), callbacks=callbacks)
    assert_same_history(history(two), history(one), 1e-6)


def test_a_result_of_another_run_answers_nothing(tmp_path):
    fit(epochs=1, resume=CheckpointPolicy(tmp_path, keep_weights="all"))
    (weights,) = files(tmp_path, "weights")
    other = weights._replace(run="0" * 16)
    RunDirectory(tmp_path).answer(other, {}, None)
    later(tmp_path)
    assert {entry.run for entry in files(tmp_path, "result")} == {weights.run, other.run}


def test_weights_too_large_for_float16_are_kept_as_they_are():
    large, small = np.float32([1.0, 1e5, np.inf]), np.float32([1.0, np.nan, -np.inf])
    assert [_narrow(weight).dtype for weight in (large, small)] == [np.float32, np.float16]


def test_of_kept_weights_any_part_of_a_set_is_evaluated_and_damaged_ones_are_left_out(tmp_path):
    part = {"validation_steps": 1, "validation_batch_size": 7}
    one = fit(validation_data=CLEAN, **part, resume=CheckpointPolicy(tmp_path, keep_weights="all"))
    assert [each["val_loss"] for each in later(tmp_path, **part).values()] == history(one)["val_loss"]
    path = RunDirectory(tmp_path).path / files(tmp_path, "weights")[0].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="left out: The checkpoint .* cannot be used"):
        assert list(later(tmp_path)) == [1, 2, 3]


@pytest.mark.nightly
def test_a_training_that_keeps_weights_is_followed_for_longer_than_the_time_to_wait_for_a_sign(
    monkeypatch, tmp_path
):
    timeout_s, followed, begun_s = 1.0, threading.Event(), time.monotonic()

    class LooksForLonger(RunDirectory):
        def read_run(self):
            if time.monotonic() - begun_s > 3 * timeout_s:
                followed.set()
            return super().read_run()

    class WaitsAtItsEnd(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            assert followed.wait(60), "the evaluator gave the training up"

    monkeypatch.setattr(evaluator, "RunDirectory", LooksForLonger)
    with evaluating(tmp_path, CLEAN, timeout_s=timeout_s) as results:
        fit(resume=CheckpointPolicy(tmp_path, keep_weights="all"), callbacks=[WaitsAtItsEnd()])
    assert [each["val_loss"] for each in results[0].values()] == alone()["val_loss"]


def test_with_an_evaluator_elsewhere_it_is_in_its_directory_that_weights_are_kept(tmp_path):
    tested = []
    size = EvaluationFunction(length, clone=sequential)
    with evaluating(tmp_path / "meeting", functions={"size": size}):
        resume = CheckpointPolicy(tmp_path / "checkpoints", keep_weights="all")
        callbacks = [keras.callbacks.LambdaCallback(on_test_begin=tested.append)]
        fit(ValidationPolicy(evaluator=tmp_path / "meeting"), resume=resume, callbacks=callbacks)
    assert not tested, "functions alone are no test"
    assert [entry.epoch for entry in files(tmp_path / "meeting", "weights")] == [0, 1, 2, 3]
    assert not (tmp_path / "checkpoints" / "evaluator").exists()


def losing(monkeypatch, *numbers):
    """Loses the evaluator before it has answered what it is asked, counted from 0."""
    answer, asked = Follower._answer, []

    def dying(self, entry):
        asked.append(entry)
        if len(asked) - 1 in numbers:
            raise HostLostError("this host is switched off")
        return answer(self, entry)

    monkeypatch.setattr(Follower, "_answer", dying)


def test_a_lost_evaluator_ends_the_training(tmp_path, monkeypatch):
    losing(monkeypatch, 2)
    policy = ValidationPolicy(evaluator=EvaluatorPolicy(tmp_path, wait_s=0.5))
    with (
        evaluating(tmp_path, CLEAN),
        pytest.warns(RuntimeWarning, match=r"no evaluator gives a sign .* waiting up to 0.5 s"),
        pytest.raises(ValidationWorkerError, match=r"validating epoch 3 failed .* for 0.5 s; start eval"),
    ):
        fit(policy)


def test_without_an_evaluator_the_training_goes_on_alone_if_it_is_told_to(tmp_path):
    policy = ValidationPolicy(evaluator=EvaluatorPolicy(tmp_path, wait_s=0.2), on_error="warn")
    with pytest.warns(RuntimeWarning) as warnings:
        trainer = fit(policy)
    said = [str(warning.message) for warning in warnings]
    assert sum("waiting up to 0.2 s" in message for message in said) == 1
    assert sum("left out: validating epoch" in message for message in said) == 4
    assert list(history(trainer)) == ["accuracy", "loss"]
    assert not files(tmp_path)


def test_after_a_loss_the_results_come_again_when_there_is_an_evaluator(tmp_path):
    back = threading.Event()

    class Waits(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                back.set()
                assert seen.wait(60)

    seen = threading.Event()

    def evaluate():
        assert back.wait(60)
        with follower(tmp_path) as one:
            seen.set()
            one.follow(60.0, takes_old=True)

    policy = EvaluatorPolicy(tmp_path, wait_s=0.5)
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(evaluate)
        with pytest.warns(RuntimeWarning, match="left out: validating|waiting up to"):
            trainer = fit(ValidationPolicy(evaluator=policy, on_error="warn", max_lag=0), callbacks=[Waits()])
        following.result(timeout=60)
    assert history(trainer)["val_loss"] == alone()["val_loss"][2:]


def test_a_validation_given_up_as_its_results_come_takes_no_other_along(tmp_path, monkeypatch):
    model = pools.sequential()
    trainer = Trainer(model, validation=ValidationPolicy(evaluator=tmp_path))
    evaluator = elsewhere.Evaluator(request_of(trainer))
    requests, state = [], ModelState(model, trains=False)
    evaluator.take(state)

    def snapshot(epoch):
        return Snapshot(epoch=epoch, step=1, values=state.read())

    def written_answered_and_the_first_given_up(self, request):
        write(self, request)
        RunDirectory(tmp_path).answer(request.entry, {"": [{"loss": 1.0}, False]}, None)
        if not requests:
            requests.extend(self.start(snapshot(1)))
            request.cancel()

    write = elsewhere.Evaluator._write
    monkeypatch.setattr(elsewhere.Evaluator, "_write", written_answered_and_the_first_given_up)
    with contextlib.suppress(ZeroDivisionError), evaluator:
        (first,) = evaluator.start(snapshot(0))
        with pytest.raises(CancelledError):
            first.result(60)
        assert requests[0].result(60).result[""][0] == {"loss": 1.0}
        raise ZeroDivisionError  # an end without one would be written, and there was no fit


def test_a_validation_that_hangs_ends_the_training_in_its_time_out(tmp_path, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(Follower, "_answer", lambda *_: not over.wait(60))
    with evaluating(tmp_path, CLEAN, timeout_s=0.2):
        with pytest.raises(ValidationTimeoutError, match=r"did not end within timeout_s=0\.2"):
            fit(ValidationPolicy(timeout_s=0.2, evaluator=tmp_path))
        over.set()


def test_what_fails_on_the_evaluator_is_told_to_the_training(tmp_path):
    def fails(model):
        raise ArithmeticError("the cause")

    with (
        evaluating(tmp_path, validation=ValidationPolicy(functions={"fails": fails}), timeout_s=1.0),
        pytest.raises(ValidationWorkerError, match=r"on the evaluator: .*ArithmeticError: the cause"),
    ):
        fit(ValidationPolicy(evaluator=tmp_path))


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            raise ZeroDivisionError


@pytest.mark.parametrize("keep", [True, False])
def test_a_training_that_has_failed_goes_on_with_the_same_evaluator(keep, tmp_path):
    policy = ValidationPolicy(evaluator=EvaluatorPolicy(tmp_path, keep_weights=keep))
    with evaluating(tmp_path, CLEAN) as results:
        with pytest.raises(ZeroDivisionError):
            fit(policy, callbacks=[Fails()], resume=tmp_path)
        two = fit(policy, resume=tmp_path)
    assert_same_history(history(two), alone(), 1e-6)
    assert [values["val_loss"] for values in results[0].values()] == alone()["val_loss"]
    assert [entry.epoch for entry in files(tmp_path, "weights")] == [0, 1, 2, 3] * keep


def test_files_of_an_older_run_are_not_taken_for_those_of_this_one(tmp_path):
    policy = ValidationPolicy(evaluator=EvaluatorPolicy(tmp_path, keep_weights=True))
    keeping = EvaluatorPolicy(tmp_path, keep_weights=True, wait_s=0.2)
    first = ValidationPolicy(evaluator=keeping, on_error="warn")
    with pytest.warns(RuntimeWarning), pytest.raises(ZeroDivisionError):
        fit(first, pools.sequential("sgd"), callbacks=[Fails()])  # another one, killed in the midst of it
    old = {entry.run for entry in files(tmp_path)}
    directory = RunDirectory(tmp_path)
    for entry in files(tmp_path, "result")[1:]:
        directory.remove(entry, entry)  # as if it had been killed sooner; one may be gone
    (directory.path / ".weights-000009-epoch-000000-a-0123456789abcdef.otck").write_bytes(b"half")
    # The first evaluator may come before the new run, and then evaluates what the old one has kept.
    with evaluating(tmp_path, CLEAN, times=2) as results:
        trainer = fit(policy)
    expected = alone()
    assert_same_history(history(trainer), expected, 1e-6)
    assert [values["val_loss"] for values in results[-1].values()] == expected["val_loss"]
    assert not old & {entry.run for entry in files(tmp_path)}
    assert not list(directory.path.glob(".weights*"))


class Terminates(keras.callbacks.Callback):
    overlap_safe = True

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_weights_of_an_epoch_that_was_not_delivered_before_a_signal_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_GRACE_S", 0.5)
    policy = ValidationPolicy(evaluator=EvaluatorPolicy(tmp_path, keep_weights=True))
    trainer = fit(policy, callbacks=[Terminates()])
    assert (trainer.ended, history(trainer)) == ("interrupted by SIGTERM", {})
    assert not files(tmp_path)


@pytest.mark.nightly
def test_what_an_ended_run_has_kept_is_evaluated_at_once_and_a_killed_one_is_waited_for(tmp_path):
    assert evaluate_run(tmp_path / "nothing", pools.sequential(), CLEAN, timeout_s=0.0) == {}
    keeping = EvaluatorPolicy(tmp_path, keep_weights=True, wait_s=0.2)
    with pytest.warns(RuntimeWarning, match="left out|waiting up to"):
        fit(ValidationPolicy(evaluator=keeping, on_error="warn"))
    expected = alone()["val_loss"]
    for timeout_s in (3600.0, 0.0):
        found = evaluate_run(tmp_path, pools.sequential(), CLEAN, timeout_s=timeout_s)
        assert [values["val_loss"] for values in found.values()] == expected
    with follower(tmp_path) as one:
        assert one.follow(0.3, takes_old=False) is None, "a cluster's evaluator waits for the next training"
    directory = RunDirectory(tmp_path)
    directory.write_run(directory.read_run()._replace(ended=None))
    found = evaluate_run(tmp_path, pools.sequential(), CLEAN, timeout_s=0.3)
    assert [values["val_loss"] for values in found.values()] == expected


def deeper(activation=None):
    return linear(lambda: keras.layers.Dense(5, activation))


def doubled(x, y):
    return 2 * x, y


@pytest.mark.by_default("variables", "settings")
@pytest.mark.parametrize(
    ("trained", "evaluated", "options", "message"),
    [
        (sequential, deeper, {}, "the evaluator has another structure of the model than the training: "),
        (deeper, lambda: deeper("relu"), {}, "another dense.activation than the training: relu instead of"),
        (sequential, sequential, {"preprocess": doubled}, "another preprocess than the training: a function"),
        (counting, counting, {}, "validation changes variables that are no metric of the model .*calls"),
    ],
    ids=["structure", "settings", "preprocess", "variables"],
)
def test_what_cannot_be_the_same_is_refused_on_both(trained, evaluated, options, message, tmp_path):
    with (
        evaluating(tmp_path, CLEAN, model=evaluated(), **options) as results,
        pytest.raises(ValidationWorkerError, match=f"on the evaluator: .*{message}"),
    ):
        fit(ValidationPolicy(evaluator=tmp_path), trained())
    assert isinstance(results[0], (HostMismatchError, ValueError))


def test_to_explain_a_fit_touches_no_directory(tmp_path):
    trainer = Trainer(pools.sequential(), validation=ValidationPolicy(evaluator=tmp_path / "run"))
    explanation = trainer.explain(X, Y, batch_size=32)
    assert (explanation.validates, explanation.max_lag) == (True, 1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (None, {}, ValueError, "needs validation_data, or functions and a model that is built"),
        (CLEAN, {"timeout_s": -1}, ValueError, "timeout_s must be"),
        (CLEAN, {"validation": "all"}, TypeError, "validation must be a ValidationPolicy or None"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(data, options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        evaluate_run(tmp_path, pools.sequential(), data, **options)
    assert not list(tmp_path.iterdir())


def test_a_cluster_s_evaluator_needs_the_directory():
    strategy = EvaluatorTask()
    with strategy.scope():
        model = sequential()
    with pytest.raises(ValueError, match=r"pass ValidationPolicy\(evaluator=directory\) on all hosts"):
        Trainer(model, strategy=strategy).fit(X, Y, validation_data=CLEAN)
