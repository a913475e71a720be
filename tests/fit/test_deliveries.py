"""Epochs are delivered in their order, waited for as the lag demands, and undone as a delivery says."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._fit.interrupts import Interrupted
from overlap_train.errors import ValidationTimeoutError, ValidationWorkerError
from overlap_train.parallel.hosts import SingleHost
from tests.fit import parts
from tests.fit.parts import Scene
from tests.networks import arrays, crossentropy
from tests.parallel.together import ThreadHost
from tests.pools import pooled
from tests.seeds import set_random_seed


def test_what_is_ready_is_delivered_in_order_and_without_waiting():
    scene = Scene()
    scene.train(0, 1, 2, ends=False)
    scene.runner.end(1)
    assert (scene.deliveries.ready(), len(scene.deliveries)) == (False, 3)
    assert not scene.deliveries.deliver_ready()
    scene.runner.end(0, 0.25)
    assert not scene.deliveries.deliver_ready()
    assert scene.delivery.epochs == [0, 1]
    assert scene.course.logs == {0: {"loss": 0.0, "val_loss": 0.25}, 1: {"loss": 1.0, "val_loss": 0.5}}
    assert [account.epoch for account in scene.ledger.accounts.closed()] == [0, 1]
    assert len(scene.deliveries) == 1


def test_on_several_hosts_an_epoch_is_ready_when_it_is_so_on_all():
    scene = Scene(hosts=SimpleNamespace(count=2, all=lambda flag: False))
    scene.train(0)
    assert not scene.deliveries.ready()


def test_a_delivery_is_told_whether_training_has_gone_on():
    scene = Scene()
    scene.train(0, 1)
    scene.deliveries.deliver_all()
    scene.train(2)
    scene.cursor.begin_epoch()  # also before its first step
    scene.deliveries.deliver_all()
    assert scene.delivery.delivered == [(0, True), (1, False), (2, True)]


@pytest.mark.parametrize(
    ("did", "reason"),
    [
        ({"stop": True}, "a callback stopped the training"),
        ({"stop": False}, "a callback compiled the model anew"),
    ],
)
def test_a_rollback_undoes_what_was_trained_after_it_and_says_why(did, reason):
    scene = Scene()
    scene.train(0, 1)
    scene.delivery.outcomes[0] = {"rolled_back": True, "reason": reason, **did}
    position = scene.deliveries.backlog.oldest.snapshot.position
    assert scene.deliveries.deliver_all()
    assert scene.delivery.epochs == [0]
    assert (len(scene.deliveries), scene.runner.futures[1].cancelled()) == (0, False)
    assert (scene.course.next_epoch, scene.course.step) == (1, parts.STEPS)
    assert scene.course.stopped is did["stop"]
    assert scene.cursor.state() is position
    (said,) = scene.progress.messages
    assert said.startswith(f"back to the end of epoch 1: {reason} (")
    (account,) = scene.ledger.accounts.closed()
    assert account.rolled_back_s > 0
    (span,) = [span for span in scene.ledger.recorder.spans() if span.name == "rollback"]
    assert (span.epoch, span.step) == (0, parts.STEPS)


def test_validations_that_have_not_begun_are_given_up_in_a_rollback():
    scene = Scene()
    scene.train(0)
    scene.train(1, ends=False)
    scene.delivery.outcomes[0] = {"rolled_back": True}
    assert scene.deliveries.deliver_ready()
    assert scene.runner.futures[1].cancelled()


@pytest.mark.parametrize(("max_lag", "delivered"), [(0, [0, 1]), (1, [0]), (2, [])])
def test_before_an_epoch_as_many_are_waited_for_as_the_lag_demands(max_lag, delivered):
    scene = Scene(max_lag=max_lag)
    scene.train(0, 1, ends=False)
    for epoch in delivered:
        scene.runner.end(epoch)
    scene.deliveries.deliver_before(2, splits=1)
    assert scene.delivery.epochs == delivered


def test_a_delivery_that_rolls_back_ends_the_wait_for_others():
    scene = Scene(max_lag=0)
    scene.train(0, 1)
    scene.delivery.outcomes[0] = {"rolled_back": True}
    scene.deliveries.deliver_before(2, splits=1)
    assert scene.delivery.epochs == [0]


def test_the_training_stops_when_an_epoch_was_told_so_or_a_delivery_says_it():
    scene = Scene()
    scene.train(0)
    assert not scene.deliveries.stops
    scene.train(1, stops=True)
    assert scene.deliveries.stops
    assert not scene.course.stopped
    scene.deliveries.deliver_all()
    assert scene.course.stopped
    assert scene.deliveries.stops


class Full:
    """As full as a test says; all else is a feed's."""

    def __init__(self, feed, full):
        self._feed, self._full, self.forgotten = feed, full, []

    def __getattr__(self, name):
        return getattr(self._feed, name)

    @property
    def full(self):
        return self._full.pop()

    keeps = True

    def forget(self, drawn, seen=0):
        self.forgotten.append((drawn, seen))


def test_room_for_batches_is_waited_for_and_said_once():
    scene = Scene()
    scene.train(0, 1)
    scene.cursor.feed = Full(scene.cursor.feed, [False, True, True])
    assert not scene.deliveries.make_room()
    assert scene.delivery.epochs == [0, 1]
    (said,) = scene.progress.messages
    assert said.startswith("waiting for validations")
    assert "ValidationPolicy.keep_bytes" in said
    forgotten = len(scene.cursor.feed.forgotten)
    scene.cursor.feed._full = [False]
    assert not scene.deliveries.make_room()
    assert len(scene.cursor.feed.forgotten) == forgotten + 1  # nobody goes back any more


def test_room_that_a_rollback_makes_is_told():
    scene = Scene()
    scene.train(0, 1)
    scene.cursor.feed = Full(scene.cursor.feed, [False, True])
    scene.delivery.outcomes[0] = {"rolled_back": True}
    assert scene.deliveries.make_room()
    assert scene.delivery.epochs == [0]


def test_a_validation_that_takes_too_long_is_an_error():
    scene = Scene(timeout_s=0.0)
    scene.train(0, ends=False)
    with pytest.raises(ValidationTimeoutError, match="timeout_s=0"):
        scene.deliveries.deliver_oldest()
    assert scene.asked


def test_a_wait_ends_when_the_fit_is_interrupted():
    scene = Scene()
    scene.train(0, ends=False)

    def interrupted():
        raise Interrupted

    scene.deliveries.check_interrupted = interrupted
    with pytest.raises(Interrupted):
        scene.deliveries.deliver_all()


def test_what_a_worker_raises_ends_the_fit():
    scene = Scene()
    scene.train(0, ends=False)
    scene.runner.end(0, ZeroDivisionError("by nothing"))
    with pytest.raises(ValidationWorkerError, match="by nothing"):
        scene.deliveries.deliver_all()
    assert scene.delivery.gone_back == [0]


@pytest.mark.parametrize(("hosts", "delivered"), [(None, [0]), (ThreadHost(0, [None, None], None), [])])
def test_until_a_deadline_one_host_delivers_what_ends_in_time(hosts, delivered):
    scene = Scene()
    scene.train(0)
    scene.train(1, ends=False)
    scene.deliveries.hosts = hosts or scene.deliveries.hosts
    scene.deliveries.deliver_until(0.0)
    assert scene.delivery.epochs == delivered
    assert not scene.asked  # which would interrupt it again


def test_until_a_deadline_no_signal_ends_the_wait_for_data_that_is_drawn_in_order():
    scene, waits = Scene(), []
    scene.train(0)
    scene.train(1, ends=False)
    scene.deliveries.suite = OrderedData(scene.deliveries.suite, waits)
    scene.deliveries.deliver_until(0.0)
    assert [timeout_s for timeout_s, _ in waits] == [0.05]
    waits[0][1]()
    assert not scene.asked


class OrderedData:
    """A suite whose data is drawn in the order of Keras, which notes how it is waited for."""

    draws_in_order = True

    def __init__(self, suite, waits):
        self._suite, self._waits = suite, waits

    def __getattr__(self, name):
        return getattr(self._suite, name)

    def wait_until_drawn(self, timeout_s, check):
        self._waits.append((timeout_s, check))


def test_an_epoch_without_validation_is_delivered_at_once_and_shown_to_nobody():
    scene = Scene(every=2)
    shown = []
    scene.progress.validation_pending = shown.extend
    scene.train(0)
    assert scene.deliveries.ready()
    scene.train(1, ends=False)
    scene.deliveries.show()
    assert shown == [(1, 0, 1)]


def test_each_delivered_epoch_goes_to_the_checkpoints():
    scene = Scene(epochs=3, max_lag=1)
    scene.train(0, 1, 2)
    scene.deliveries.deliver_all()
    points, lasts = zip(*scene.resumer.written, strict=True)
    assert lasts == (False, False, True)
    assert [(point.epoch, point.step) for point in points] == [(1, 4), (2, 8), (3, 12)]
    assert points[1].logs == {"loss": 1.0, "val_loss": 0.5}
    assert (points[0].max_lag, points[0].position.epochs) == (1, 1)


def test_a_checkpoint_inside_an_epoch_holds_the_epochs_that_wait():
    scene = Scene()
    scene.train(0, 1, 2)
    scene.deliveries.deliver_oldest()
    scene.cursor.begin_epoch()
    scene.resumer.inside_at = 13
    assert not scene.deliveries.checkpoint_due()
    scene.course.step = 13
    assert scene.deliveries.checkpoint_due()
    scene.resumer.written.clear()
    scene.deliveries.checkpoint(parts.snapshot_at(3, scene.cursor.state()))
    (point,) = scene.resumer.written
    assert (point.epoch, point.logs) == (3, {"loss": 0.0, "val_loss": 0.5})
    assert [waiting.snapshot.epoch for waiting in point.undelivered] == [1, 2]
    assert [waiting.logs for waiting in point.undelivered] == [{"loss": 1.0}, {"loss": 2.0}]
    assert point.position.within


def test_an_epoch_of_a_checkpoint_is_validated_again():
    scene = Scene()
    waiting = SimpleNamespace(snapshot=parts.snapshot_at(1, scene.cursor.state()), logs={"loss": 7.0})
    scene.deliveries.begin_again(waiting)
    scene.runner.end(1)
    scene.deliveries.deliver_all()
    assert scene.course.logs == {1: {"loss": 7.0, "val_loss": 0.5}}


@pytest.mark.parametrize(
    ("backlog", "rewindable", "waits", "may"),
    [
        ("block", True, True, True),
        ("block", False, True, False),
        ("block", False, False, True),
        ("latest", True, True, False),
        ("latest", True, False, True),
    ],
)
def test_a_checkpoint_between_steps_needs_data_that_goes_back_to_all_that_waits(
    backlog, rewindable, waits, may
):
    scene = Scene(backlog=backlog)
    if waits:
        scene.train(0)
    scene.cursor.feed = SimpleNamespace(rewindable=rewindable, written_variables=())
    assert scene.deliveries.may_checkpoint() is may


def test_who_stops_keeps_nothing_or_writes_none():
    scene = Scene()
    assert scene.deliveries.may_checkpoint()
    scene.course.stopped = True
    assert not scene.deliveries.may_checkpoint()
    scene.course.stopped = False
    scene.deliveries.hosts = ThreadHost(0, [None, None], None)
    assert scene.deliveries.may_checkpoint()  # no epoch waits, whose snapshot other hosts would need
    scene.deliveries.hosts, scene.deliveries.resumer = SingleHost(), None
    assert not scene.deliveries.may_checkpoint()
    assert not scene.deliveries.checkpoint_due()


X, Y = arrays(64)


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
