"""What a checkpoint holds beside the variables: the resumed training goes on as the unbroken one would."""

from __future__ import annotations

import collections
import random
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from overlap_train.errors import CheckpointMismatchError
from tests.networks import CLASSES, arrays, assert_same_history
from tests.pools import pooled
from tests.seeds import set_random_seed

X, Y = arrays(40)


@pooled
def model(rate=0.05, weights=None, momentum=0.9) -> keras.Model:
    set_random_seed(1)
    made = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(rate, momentum=momentum), loss, loss_weights=weights)
    return made


class Killed(Exception):
    pass


class Kills(keras.callbacks.Callback):
    """Ends a fit at an epoch's end, before it has a checkpoint."""

    overlap_safe = True

    def __init__(self, last=None):
        super().__init__()
        self.get_state, self.set_state, self._last = dict, (lambda state: None), last

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._last:
            raise Killed


def fit(resume, callback, *, epochs=6, last=None, made=None, policy=None, **options):
    set_random_seed(1)
    trainer = Trainer(made or model(), validation=policy or ValidationPolicy())
    callbacks = [callback, Kills(last)]
    call = dict(batch_size=8, verbose=0, validation_data=(X, Y), callbacks=callbacks, resume=resume)
    trainer.fit(X, Y, epochs=epochs, **{**call, **options})
    return trainer


def interrupted(directory, make, last=3, **options):
    """Returns the trainers of an unbroken run and of one that was killed and resumed, and the callbacks."""
    whole, broken = directory / "whole", directory / "broken"
    first, second = make(), make()
    unbroken = fit(whole, first, **options)
    with pytest.raises(Killed):
        fit(broken, make(), last=last, **options)
    return unbroken, fit(broken, second, **options), first, second


class Draws(keras.callbacks.Callback):
    """Jitters the learning rate with the numbers of everybody's generators."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def on_train_begin(self, logs=None):
        keras.utils.set_random_seed(4)  # whatever has been traced, which draws seeds

    def on_epoch_end(self, epoch, logs=None):
        self.drawn += [np.random.rand(), random.random(), float(tf.random.uniform(()))]
        self.drawn.append(float(keras.random.uniform(())))
        self.model.optimizer.learning_rate = 0.01 + 0.01 * self.drawn[-2]


def test_who_draws_from_everybodys_generators_gets_the_numbers_of_the_unbroken_run(tmp_path):
    unbroken, resumed, first, second = interrupted(tmp_path, Draws)
    assert second.drawn == first.drawn
    assert len(set(first.drawn)) == len(first.drawn)
    assert_same_history(resumed.model.history.history, unbroken.model.history.history)


class Keeps(keras.callbacks.Callback):
    """Decides with a counter and a generator of its own when to stop."""

    def __init__(self):
        super().__init__()
        self.seen, self.losses = collections.Counter(), collections.defaultdict(list)
        self.rng = np.random.default_rng(5)

    def on_epoch_end(self, epoch, logs=None):
        self.seen["epochs"] += 1
        self.losses["loss"].append(logs["loss"])
        self.model.optimizer.learning_rate = 0.05 * self.rng.uniform(0.5, 1.0)
        self.model.stop_training = self.seen["epochs"] >= 5


def test_a_callback_goes_on_with_what_it_kept(tmp_path):
    unbroken, resumed, first, second = interrupted(tmp_path, Keeps)
    assert (second.seen, second.losses) == (first.seen, first.losses)
    assert resumed.model.history.epoch == unbroken.model.history.epoch == [0, 1, 2, 3, 4]
    assert not any("callbacks" in message for message in resumed.messages)


class Holds(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.thread, self.parts, self.function = threading.Thread(), iter([1, 2]), print


def test_what_no_checkpoint_holds_is_said_once_with_its_names(tmp_path):
    _, resumed, _, _ = interrupted(tmp_path, Holds)
    (message,) = [text for text in resumed.messages if "as they then are" in text]
    assert "these attributes of its callbacks as they then are: Holds.thread, Holds.parts;" in message


class Listens(keras.callbacks.Callback):
    overlap_safe = True

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_step_validation(self, step, logs):
        self.steps.append((step, logs["val_loss"]))


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.by_default("1")
def test_validations_inside_epochs_are_those_of_the_unbroken_run(tmp_path, lag):
    policy = ValidationPolicy(every_steps=2, max_lag=lag, overlap="always")
    unbroken, first = fit(None, each := Listens(), policy=policy), each
    broken = CheckpointPolicy(directory=tmp_path, every_steps=3)
    with pytest.raises(Killed):
        fit(broken, Listens(), policy=policy, last=2)
    resumed = fit(broken, second := Listens(), policy=policy)
    assert [step for step, _ in first.steps] == list(range(2, 31, 2))
    assert [step for step, _ in second.steps] == [step for step, _ in first.steps]
    np.testing.assert_allclose(second.steps, first.steps, rtol=1e-6)
    expected = [(each.epoch, each.step) for each in unbroken.step_validations]
    assert [(each.epoch, each.step) for each in resumed.step_validations] == expected


def changed(trainer):
    return [text for text in trainer.messages if "configured otherwise" in text]


def test_other_settings_are_said_in_one_message_and_those_that_callbacks_changed_are_not(tmp_path):
    def halves():
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)

    fit(tmp_path, halves(), epochs=2)
    same = fit(tmp_path, halves(), epochs=3)
    assert changed(same) == []
    assert changed(fit(tmp_path, halves(), epochs=4, made=same.model)) == []  # in the same process
    other = model(rate=0.5, momentum=0.25)
    (message,) = changed(fit(tmp_path, halves(), epochs=5, made=other, steps_per_epoch=5))
    assert message == (
        "this training is configured otherwise than that of the checkpoint: optimizer.learning_rate stays "
        "0.003125, as in the checkpoint (given: 0.5); optimizer.momentum is 0.25 (was 0.9)"
    )


def test_other_weights_of_the_loss_are_refused(tmp_path):
    fit(tmp_path, Listens(), epochs=1)
    with pytest.raises(CheckpointMismatchError, match=r"compile\.loss_weights is \[0\.5\]"):
        fit(tmp_path, Listens(), epochs=2, made=model(weights=[0.5]))
