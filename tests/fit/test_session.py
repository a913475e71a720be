"""A fit at its edges: what it says, what it learns from, what fails, and how several hosts stay alike."""

import keras
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, ExecutionPlan, Trainer, ValidationPolicy
from overlap_train._fit.lag import IdleCores
from overlap_train.errors import ValidationWorkerError
from overlap_train.parallel.hosts import Hosts, SlowHost
from tests.networks import arrays, linear
from tests.pools import pooled, sequential
from tests.whole_fits.comparing import assert_as_keras, slices

X, Y = arrays(64)
VALIDATION = arrays(40, 1)


class InEpoch(keras.callbacks.Callback):
    """Does something at the beginning of the second epoch."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.does(self)


def listens(callback):
    callback.on_train_batch_end = lambda batch, logs=None: print(batch)


def makes_anew(callback):
    callback.model.make_train_function(force=True)


def stops(callback):
    callback.model.stop_training = True


def fitted(does=lambda callback: None, **arguments):
    trainer = Trainer(sequential(), validation=ValidationPolicy(overlap="always"))
    data = {"validation_data": VALIDATION, "callbacks": [InEpoch(does)], "epochs": 3}
    trainer.fit(X, Y, verbose=0, **data | arguments)
    return trainer


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (makes_anew, ["the step is traced again", "no further checkpoints are written"]),
        (listens, ["built again, because "]),
    ],
)
def test_what_a_callback_changes_has_all_built_anew_and_is_said_once(does, said, tmp_path):
    messages = fitted(does, resume=tmp_path).messages
    assert [sum(text in message for message in messages) for text in said] == [1] * len(said)


@pytest.mark.parametrize(
    ("does", "why"), [(stops, "a callback had stopped it"), (id, "all its epochs are done")]
)
def test_a_training_that_is_over_says_so(does, why, tmp_path):
    policy = CheckpointPolicy(tmp_path, every_epochs=9)  # and behind the last
    ends = []
    notes = keras.callbacks.LambdaCallback(on_train_end=ends.append)
    callbacks = [InEpoch(does), notes]
    epochs = fitted(does, resume=policy, callbacks=callbacks).model.history.epoch
    trainer = fitted(does, resume=policy, callbacks=callbacks)
    assert ends[1] == ends[0] != {}
    *_, resumed, nothing = trainer.messages
    assert resumed == f"resumed after epoch {len(epochs)}"
    assert nothing == f"nothing is left to train: {why}; another directory starts afresh"
    assert trainer.model.history.epoch == epochs
    assert trainer.model.stop_training is (does is stops)


def test_the_first_call_which_traces_teaches_nothing(monkeypatch):
    idle = []
    monkeypatch.setattr(IdleCores, "observe", lambda self, *seconds: idle.append(seconds))
    trainer = Trainer(sequential(), execution=ExecutionPlan(steps_per_call=3))
    trainer.fit(X, Y, batch_size=16, epochs=2, verbose=0)
    assert len(idle) == 3


class OwnLogs(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data) | {"rows": tf.shape(data[0])[0]}


def test_the_logs_of_an_epoch_whose_steps_make_logs_of_their_own_are_those_of_its_last_step():
    def run(trained):
        trained.fit(X[:40], Y[:40], batch_size=16, epochs=2, shuffle=False, verbose=0)

    trainer = assert_as_keras(run, build=lambda: linear(kind=OwnLogs))
    assert trainer.model.history.history["rows"] == [8, 8]


class Failing(keras.Sequential):
    """Cannot be validated once it has been trained for so many steps."""

    def test_step(self, data):
        tf.debugging.assert_less(self.optimizer.iterations, tf.constant(8, tf.int64), "late")
        return super().test_step(data)


@pooled
def failing():
    return linear(lambda: keras.layers.Dropout(0.3, seed=1), kind=Failing, optimizer="adam")


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
@pytest.mark.by_default("arrays-3")
def test_a_failed_validation_leaves_the_model_where_it_began(lag, kind):
    def run(trained):
        x, y, size = X, Y, 16
        if kind == "tf.data":
            x, y, size = slices(X, Y).batch(16), None, None
        with pytest.raises(tf.errors.InvalidArgumentError, match="late") as raised:
            trained.fit(x, y, batch_size=size, epochs=9, validation_data=(X, Y), shuffle=False, verbose=0)
        assert isinstance(raised.value, ValidationWorkerError) == isinstance(trained, Trainer)

    trainer = assert_as_keras(run, ValidationPolicy(max_lag=lag, overlap="always"), build=failing)
    assert trainer.model.history.epoch == [0]


# What only several hosts meet, with as much of a fit as it takes.


def test_the_host_that_the_others_wait_for_is_named(monkeypatch):
    monkeypatch.setattr(Hosts, "slow_host", lambda self, trained_s: SlowHost(3, 1.5))
    trainer = fitted()
    assert {(account.slow_host, account.slow_host_s) for account in trainer.accounts} == {(3, 1.5)}
    assert "epoch 1: the others waited 1.50 s for host 3" in trainer.messages
