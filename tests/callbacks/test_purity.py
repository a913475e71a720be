"""Which functions of a callback are known to have no effect: what their code shows, and nothing else."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._callbacks.purity import is_pure
from tests.networks import arrays, sequential

kc = keras.callbacks
X, Y = arrays(70)
OUTER, TABLE, DECAY = 0.5, {0: 0.1}, keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


def pure_helper(epoch):
    return OUTER**epoch


def reads_a_table(epoch, lr):
    return TABLE.get(epoch, lr)


def counting():
    seen = []

    def schedule(epoch, lr):
        seen.append(epoch)
        return lr

    return schedule


PURE = {
    "arithmetic": lambda epoch, lr: lr * 0.9 if epoch > 2 else lr,
    "a number outside": lambda epoch, lr: lr * OUTER,
    "a pure function outside": lambda epoch, lr: lr * pure_helper(epoch),
    "NumPy": lambda epoch, lr: float(0.1 * np.cos(np.pi * epoch / 10)),
    "a schedule of Keras": DECAY,
    "its method": DECAY.__call__,
    "a call of one": lambda epoch, lr: float(DECAY(epoch)) if False else DECAY(epoch),
}


IMPURE = {
    "a table that may change": reads_a_table,
    "a list that it fills": counting(),
    "random numbers": lambda epoch, lr: lr * np.random.rand(),
    "an object's attribute": lambda epoch, lr: lr * X.mean(),
    "a builtin that prints": lambda epoch, lr: print(lr) or lr,
    "a partial": __import__("functools").partial(lambda scale, epoch, lr: lr * scale, 0.5),
}


@pytest.mark.parametrize("name", PURE)
def test_functions_whose_code_shows_it_are_pure(name):
    assert is_pure(PURE[name])


@pytest.mark.parametrize("name", IMPURE)
def test_all_others_are_not(name):
    assert not is_pure(IMPURE[name])


@pytest.mark.parametrize(("name", "in_step"), [("arithmetic", False), ("a table that may change", True)])
def test_a_schedule_overlaps_only_if_it_is_pure(name, in_step):
    schedule = (PURE | IMPURE)[name]
    trainer = Trainer(sequential("sgd"), validation=ValidationPolicy(overlap="always"))
    trainer.fit(
        X,
        Y,
        epochs=2,
        verbose=0,
        validation_data=arrays(33, 1),
        callbacks=[kc.LearningRateScheduler(schedule)],
    )
    assert any("LearningRateScheduler" in message for message in trainer.messages) == in_step
