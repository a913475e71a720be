"""Hooks inside an epoch are called late, in the order of Keras, while the training runs ahead."""

import re

import keras
import pytest

from overlap_train._fit.deliveries import Deliveries
from tests.callbacks.test_notes import COMPUTING, printing
from tests.networks import arrays
from tests.whole_fits.comparing import assert_as_keras, goes_back, halves

kc = keras.callbacks
X, Y = arrays(70)


class Shows(kc.Callback):
    """Prints the rate with which an epoch begins, and that it has ended."""

    def on_epoch_begin(self, epoch, logs=None):
        print("begins", epoch, f"{float(self.model.optimizer.learning_rate):.6f}")

    def on_epoch_end(self, epoch, logs=None):
        print("ends", epoch)


class Evaluates(kc.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.metrics[0].update_state(3.0)


def scheduled(schedule, *others):
    return lambda: [kc.LearningRateScheduler(schedule, verbose=1), Shows(), *(make() for make in others)]


# Callbacks, and which variable of theirs an epoch that ran ahead had not begun with.
CASES = {
    "in time": (scheduled(COMPUTING["arithmetic"]), None),
    "by a table": (scheduled(COMPUTING["a table"]), None),
    "by Keras": (scheduled(COMPUTING["Keras"]), None),
    "a schedule that prints": (scheduled(printing), "learning_rate"),
    "a rate set before": (scheduled(COMPUTING["Keras"], lambda: halves(1)), "learning_rate"),
    "a metric": (lambda: [Evaluates()], "total"),
}


@pytest.mark.parametrize(("callbacks", "otherwise"), CASES.values(), ids=CASES)
@pytest.mark.by_default("in time", "a schedule that prints", "a rate set before", "a metric")
def test_epochs_begin_as_under_keras_and_are_trained_again_where_they_began_otherwise(
    callbacks, otherwise, capsys, monkeypatch
):
    monkeypatch.setattr(Deliveries, "ready", lambda _: False)  # a validation may end before the next epoch

    def run(trained):
        given = {"epochs": 6, "verbose": 0, "validation_data": arrays(33, 1)}
        trained.fit(X, Y, callbacks=callbacks(), **given)
        return capsys.readouterr().out

    trainer = assert_as_keras(run)
    assert goes_back(trainer) is (otherwise is not None)
    assert not otherwise or re.search(f"a callback set .*{otherwise}", "\n".join(trainer.messages))
