"""A fit at its edges: what it says, what it learns from, what fails, and how several hosts stay alike."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, ExecutionPlan, Trainer, ValidationPolicy
from overlap_train._fit.deliveries import Deliveries
from overlap_train._fit.epoch_training import EpochTraining
from overlap_train._fit.interrupts import Interrupted
from overlap_train._fit.lag import IdleCores
from overlap_train._fit.session import FitSession
from overlap_train._snapshot import Snapshot
from overlap_train.errors import ValidationWorkerError
from overlap_train.parallel.hosts import SlowHost
from tests.networks import arrays, crossentropy
from tests.parallel.together import on_hosts
from tests.pools import pooled, sequential
from tests.seeds import set_random_seed

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
        (lambda callback: callback.model.make_train_function(force=True), "the step is traced again"),
        (listens, "built again, because "),
    ],
)
def test_what_a_callback_changes_has_all_built_anew_once(does, said):
    assert sum(said in message for message in fitted(does).messages) == 1


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
    histories = []
    for ours in (False, True):
        set_random_seed(4)
        model = OwnLogs([keras.Input((X.shape[1],)), keras.layers.Dense(4)])
        model.compile("sgd", crossentropy())
        fit = Trainer(model).fit if ours else model.fit
        histories.append(fit(X[:40], Y[:40], batch_size=16, epochs=2, shuffle=False, verbose=0).history)
    assert histories[1]["rows"] == histories[0]["rows"] == [8, 8]
    np.testing.assert_allclose(histories[1]["loss"], histories[0]["loss"], rtol=1e-5)


class Failing(keras.Sequential):
    """Cannot be validated once it has been trained for so many steps."""

    def test_step(self, data):
        tf.debugging.assert_less(self.optimizer.iterations, tf.constant(8, tf.int64), "late")
        return super().test_step(data)


@pooled
def failing():
    set_random_seed(4)
    layers = [keras.layers.Dropout(0.3, seed=1), keras.layers.Dense(4)]
    model = Failing([keras.Input((X.shape[1],)), *layers])
    model.compile("adam", crossentropy())
    return model


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
@pytest.mark.by_default("arrays-3")
def test_a_failed_validation_leaves_the_model_where_it_began(lag, kind):
    left = []
    for trained in (False, True):
        model = failing()
        policy = ValidationPolicy(max_lag=lag, overlap="always")
        fit = Trainer(model, validation=policy).fit if trained else model.fit
        x, y, size = X, Y, 16
        if kind == "tf.data":
            x, y, size = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), None, None
        with pytest.raises(tf.errors.InvalidArgumentError, match="late") as raised:
            fit(x, y, batch_size=size, epochs=9, validation_data=(X, Y), shuffle=False, verbose=0)
        assert isinstance(raised.value, ValidationWorkerError) == trained
        variables = [*model.trainable_variables, *model.optimizer.variables, *model.non_trainable_variables]
        left.append([np.asarray(variable) for variable in variables])
        assert model.history.epoch == [0]
    for actual, wanted in zip(left[1], left[0], strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


class Waiting(list):
    """Epochs that wait: whether each is ready here."""

    blocks = True

    def ready(self):
        return self[0]


@pytest.mark.parametrize(
    ("within", "step", "failed", "gone_on"),
    [(False, 4, False, False), (True, 4, False, True), (False, 5, False, True), (False, 4, True, True)],
)
def test_a_training_has_gone_on_also_before_an_epochs_first_step(within, step, failed, gone_on):
    deliveries = SimpleNamespace(
        cursor=SimpleNamespace(within=within), _course=SimpleNamespace(step=step), _failed_ahead=failed
    )
    assert Deliveries._trained_on(deliveries, SimpleNamespace(step=4)) is gone_on


@pytest.mark.parametrize(("stopped", "waiting"), [(False, False), (True, False), (False, True)])
def test_a_training_stops_when_a_delivery_or_an_epoch_that_waits_says_so(stopped, waiting):
    backlog = [SimpleNamespace(stops=False), SimpleNamespace(stops=waiting)]
    deliveries = SimpleNamespace(_course=SimpleNamespace(stopped=stopped), backlog=backlog)
    assert Deliveries.stops.fget(deliveries) is (stopped or waiting)


def test_a_checkpoint_inside_an_epoch_has_the_logs_of_the_epoch_delivered_last():
    written = []
    backlog = Waiting([SimpleNamespace(snapshot="of epoch 2", train_logs={"loss": 1.0})])
    backlog.max_lag = 1
    deliveries = SimpleNamespace(
        resumer=SimpleNamespace(inside=lambda point, *_: written.append(point)),
        _course=SimpleNamespace(stopped=False, logs={1: {"loss": 2.0}}),
        backlog=backlog,
        callbacks=keras.callbacks.CallbackList([]),
    )
    Deliveries.checkpoint(deliveries, Snapshot(3, 13, None, "inside epoch 3"))
    (point,) = written
    assert (point.epoch, point.position, point.logs) == (3, "inside epoch 3", {"loss": 2.0})
    assert [each.logs for each in point.undelivered] == [{"loss": 1.0}]


# What only several hosts meet, with as much of a fit as it takes.


def test_on_several_hosts_an_epoch_is_ready_when_it_is_so_on_all():
    def ready(host, *on_hosts_too):
        return Deliveries.ready(SimpleNamespace(hosts=host, backlog=Waiting([host.index in on_hosts_too])))

    assert on_hosts(lambda host: ready(host, 0)) == [False, False]
    assert on_hosts(lambda host: ready(host, 0, 1)) == [True, True]


def test_several_hosts_make_as_many_steps_as_the_chief_wants_and_stop_together():
    def agreed(host, *signals):
        training = SimpleNamespace(
            calls_batches=False,
            model=SimpleNamespace(stop_training=False),
            pace=SimpleNamespace(steps=lambda: 3 - host.index),
            interrupts=SimpleNamespace(received=signals[host.index]),
            _hosts=host,
            _capped=lambda steps: steps,
        )
        return EpochTraining.agree_on_steps(training)

    assert on_hosts(lambda host: agreed(host, None, None)) == [3, 3]
    errors = on_hosts(lambda host: agreed(host, None, "SIGINT"))
    assert [type(error) for error in errors] == [Interrupted, Interrupted]


@pytest.mark.parametrize("max_lag", [0, 1])
def test_several_hosts_build_nothing_anew_and_refuse_what_would_be_noticed(max_lag):
    session = SimpleNamespace(
        _parts=SimpleNamespace(grounds=SimpleNamespace(changed=lambda: "it listens now")),
        _training=SimpleNamespace(calls_batches=True),
        _deliveries=SimpleNamespace(backlog=SimpleNamespace(max_lag=max_lag)),
    )
    if not max_lag:
        FitSession._require_settled(session)
        return
    with pytest.raises(ValueError, match="it listens now, while the training on several hosts runs ahead"):
        FitSession._require_settled(session)


def test_the_host_that_the_others_waited_for_is_named():
    said, noted = [], []
    accounts = SimpleNamespace(trained_s=lambda epoch: 2.0, slow_host=lambda *slow: noted.append(slow))
    training = SimpleNamespace(
        ledger=SimpleNamespace(accounts=accounts),
        _hosts=SimpleNamespace(slow_host=lambda trained_s: SlowHost(3, 1.25)),
        progress=SimpleNamespace(message=said.append),
    )
    EpochTraining.name_slow_host(training, 0)
    assert (said, noted) == (["epoch 1: the others waited 1.25 s for host 3"], [(0, 3, 1.25)])


@pytest.mark.parametrize(
    ("waits", "hosts", "feed", "blocks", "may"),
    [
        (True, 1, (True, ()), True, True),
        (True, 1, (False, ()), True, False),
        (True, 1, (True, ("a variable",)), True, False),
        (True, 1, (True, ()), False, False),
        (True, 2, (True, ()), True, False),
        (False, 2, (False, ()), False, True),
    ],
)
def test_a_checkpoint_between_steps_needs_data_that_goes_back_to_all_that_waits(
    waits, hosts, feed, blocks, may
):
    backlog = Waiting([True] * waits)
    backlog.blocks = blocks
    feed = SimpleNamespace(rewindable=feed[0], written_variables=feed[1])
    deliveries = SimpleNamespace(
        resumer=object(),
        stops=False,
        hooks=SimpleNamespace(keep_batches=False, has_begun=False),
        cursor=SimpleNamespace(feed=feed),
        hosts=SimpleNamespace(count=hosts),
        backlog=backlog,
    )
    assert Deliveries.may_checkpoint(deliveries) is may
