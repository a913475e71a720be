"""Callbacks that only keep what they are given see the calls of Keras, while the training runs ahead."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.callbacks import test_late as late
from tests.networks import VALIDATION_ROWS, arrays, assert_same_history, assert_same_weights
from tests.pools import sequential

X, Y = arrays(64)
VALIDATION = arrays(VALIDATION_ROWS, 1)
ARGUMENTS = dict(batch_size=16, epochs=6, verbose=0, shuffle=False, validation_data=VALIDATION)


class Keeps(late.Keeps):
    """Keeps every call of its hooks, those of a validation too."""

    def on_test_batch_end(self, batch, logs=None):
        self.calls.append(("test", batch, dict(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("end", epoch, dict(logs)))


class Halves(keras.callbacks.Callback):
    """Changes the training after two of the epochs."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch in (1, 3):
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) / 2


def assert_same_calls(actual, expected):
    assert [call[:2] for call in actual] == [call[:2] for call in expected]
    for (*_, logs), (*where, expected_logs) in zip(actual, expected, strict=True):
        assert logs.keys() == expected_logs.keys(), where
        for name, value in expected_logs.items():
            np.testing.assert_allclose(logs[name], value, rtol=1e-5, atol=1e-7, err_msg=f"{where} {name}")


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize(
    "others",
    [list, lambda: [Halves()], lambda: [keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=2)]],
    ids=["alone", "with a change", "with a stop"],
)
@pytest.mark.by_default("with a change-1")
def test_the_calls_are_those_of_keras(lag, others):
    keeps, expected_keeps = Keeps(), Keeps()
    expected = sequential()
    expected.fit(X, Y, callbacks=[expected_keeps, *others()], **ARGUMENTS)
    model = sequential()
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always"))
    assert trainer.explain(X, Y, callbacks=[Keeps(), *others()], **ARGUMENTS).max_lag == lag
    trainer.fit(X, Y, callbacks=[keeps, *others()], **ARGUMENTS)
    assert_same_calls(keeps.calls, expected_keeps.calls)
    assert_same_history(model.history.history, expected.history.history)
    assert_same_weights(model, expected)


@pytest.mark.nightly
def test_a_checkpoint_holds_what_the_callback_had_seen_at_its_epoch_s_end(tmp_path):
    policy = ValidationPolicy(max_lag=2, overlap="always")
    keeps = Keeps()
    Trainer(sequential(), validation=policy).fit(
        X, Y, callbacks=[Keeps()], resume=tmp_path, **ARGUMENTS | {"epochs": 3}
    )
    Trainer(sequential(), validation=policy).fit(X, Y, callbacks=[keeps], resume=tmp_path, **ARGUMENTS)
    expected = Keeps()
    sequential().fit(X, Y, callbacks=[expected], **ARGUMENTS)
    assert_same_calls(keeps.calls, expected.calls)


@pytest.mark.nightly
def test_what_a_generator_may_look_at_is_set_in_time():
    """As in a curriculum: the data of an epoch follow from what the callback has set as it began."""

    class Level(keras.callbacks.Callback):
        level = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.level = epoch

    class Rows(keras.utils.PyDataset):
        def __init__(self, level):
            super().__init__()
            self.level = level

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X[:16] * self.level.level, Y[:16]

    def run(fit):
        level = Level()
        return fit(Rows(level), epochs=4, verbose=0, validation_data=VALIDATION, callbacks=[level]).history

    ours = run(Trainer(sequential(), validation=ValidationPolicy(max_lag=2, overlap="always")).fit)
    assert_same_history(ours, run(sequential().fit))


@pytest.mark.nightly
def test_datasets_that_shuffle_at_epochs_ends_take_turns():
    """Both draw from NumPy's global generator."""

    class Shuffled(keras.utils.PyDataset):
        def __init__(self, x, y):
            super().__init__()
            self.x, self.y, self.order = x, y, np.arange(len(x))

        def __len__(self):
            return len(self.x) // 16

        def __getitem__(self, index):
            rows = self.order[index * 16 : index * 16 + 16]
            return self.x[rows], self.y[rows]

        def on_epoch_end(self):
            np.random.shuffle(self.order)

    def run(fit):
        return fit(Shuffled(X, Y), validation_data=Shuffled(*VALIDATION), epochs=4, verbose=0).history

    trainer = Trainer(sequential(), validation=ValidationPolicy(max_lag=2, overlap="always"))
    ours = run(trainer.fit)
    assert not any("in step" in message for message in trainer.messages)
    assert_same_history(ours, run(sequential().fit))
