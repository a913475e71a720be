"""A whole fit on two replicas: rollback, resume, validation on chosen devices, other callbacks."""

from tests.training.replicas.two_cpus import on_two  # isort: skip  # before anything starts TensorFlow

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from overlap_train._validation.evaluation import SnapshotEvaluator
from tests.networks import arrays, assert_same_history, assert_same_weights, sequential
from tests.pools import pooled

ALWAYS = ValidationPolicy(max_lag=1, overlap="always")


def momentum():
    return sequential(keras.optimizers.SGD(0.3, momentum=0.9))


def slower():
    return keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05)


def fit(model, trainer=None, **arguments):
    run = model.fit if trainer is None else trainer.fit
    defaults = dict(batch_size=32, epochs=8, validation_data=arrays(91, 1), verbose=0)
    run(*arrays(), **(defaults | arguments))
    return model


@functools.cache
def plateaued_with_keras():
    return fit(momentum(), callbacks=[slower()])


momentum_on_two = pooled(on_two(momentum))


def test_a_rollback_puts_both_replicas_back():
    expected = plateaued_with_keras()
    actual = momentum_on_two()
    trainer = Trainer(actual, validation=ALWAYS)
    fit(actual, trainer, callbacks=[slower()])
    assert any(account.rolled_back_s > 0 for account in trainer.accounts)
    assert_same_history(actual.history.history, expected.history.history)
    assert_same_weights(actual, expected)
    for variable in (*actual.variables, *actual.optimizer.variables):
        first, second = variable.value.values
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=variable.path)


class Killed(Exception):
    pass


KILL_AT = [4]


class Killer(keras.callbacks.Callback):
    """Ends the run at an epoch that is not its own state, which a checkpoint would bring back."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch in KILL_AT:
            KILL_AT.remove(epoch)
            raise Killed


@pytest.mark.parametrize("then", [pytest.param("two", marks=pytest.mark.nightly), "one"])
def test_a_run_that_was_cut_off_goes_on_to_the_same_result(tmp_path, then):
    """On two replicas again, or on one device: a checkpoint does not say on how many it was written."""
    expected = plateaued_with_keras()
    policy = CheckpointPolicy(directory=tmp_path)
    KILL_AT[:] = [4]
    first = momentum_on_two()
    with pytest.raises(Killed):
        fit(first, Trainer(first, validation=ALWAYS), callbacks=[slower(), Killer()], resume=policy)
    second = momentum_on_two() if then == "two" else momentum()
    fit(second, Trainer(second, validation=ALWAYS), callbacks=[slower(), Killer()], resume=policy)
    assert second.history.epoch == expected.history.epoch
    assert_same_history(second.history.history, expected.history.history)
    assert_same_weights(second, expected)


def test_continue_takes_a_callbacks_change_over_on_both():
    model = momentum_on_two()
    policy = ValidationPolicy(on_change="continue", overlap="always")

    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.3 / 2 ** (epoch + 1)

    fit(model, Trainer(model, validation=policy), epochs=3, callbacks=[Halve()])
    for copy in model.optimizer.learning_rate.value.values:
        np.testing.assert_allclose(copy.numpy(), 0.3 / 8)


def test_validation_workers_take_the_devices_in_turn_and_find_the_arrays_there(monkeypatch):
    """By default those of the replicas; else those that the policy names."""
    seen = []
    stock = SnapshotEvaluator.evaluate

    def evaluate(self, values, part, held=None):
        result = stock(self, values, part, held)
        lie = {tensor.device[-5:] for tensor in tf.nest.flatten(held) if tensor is not None}
        seen.append((result.state[0].device[-5:], *lie))
        return result

    monkeypatch.setattr(SnapshotEvaluator, "evaluate", evaluate)
    for workers, wanted in ((2, {"CPU:0", "CPU:1"}), (("CPU:1", "CPU:1"), {"CPU:1"})):
        seen.clear()
        model = on_two(sequential)()
        trainer = Trainer(model, validation=ValidationPolicy(workers=workers))
        fit(model, trainer, epochs=1)
        assert set(seen) == {(device, device) for device in wanted}


def test_evaluate_equals_keras():
    expected, actual = sequential(), on_two(sequential)()
    x, y = arrays()
    wanted = expected.evaluate(x, y, verbose=0, return_dict=True)
    assert Trainer(actual).evaluate(x, y, verbose=0, return_dict=True) == pytest.approx(wanted, rel=1e-5)
