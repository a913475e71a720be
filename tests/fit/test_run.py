"""A fit keeps its accounts however it ends, and one that has nothing to train only calls its callbacks."""

import io
import sys

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._fit import run as module
from overlap_train._fit.deliveries import Deliveries
from overlap_train.errors import HostLostError, HostMismatchError
from tests import networks, pools
from tests.parallel.together import ThreadHost
from tests.whole_fits.comparing import VALIDATION, in_turn


class Told(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.hooks = []

    def on_train_begin(self, logs=None):
        self.hooks.append("train begins")

    def on_epoch_begin(self, epoch, logs=None):
        self.hooks.append("epoch begins")

    def on_train_end(self, logs=None):
        self.hooks.append(("train ends", logs))


def test_where_no_epoch_is_to_be_trained_nothing_is_built(monkeypatch):
    monkeypatch.setattr(module.FitBuilder, "build", lambda builder: pytest.fail("it was built"))
    trainer, told = Trainer(networks.sequential()), Told()
    weights = trainer.model.get_weights()
    history = trainer.fit(*networks.arrays(), initial_epoch=2, epochs=2, verbose=0, callbacks=[told])
    assert told.hooks == ["train begins", ("train ends", {})]
    assert (trainer.ended, history.ended, trainer.accounts) == ("completed", "completed", [])
    for before, after in zip(weights, trainer.model.get_weights(), strict=True):
        assert (before == after).all()


def test_where_no_epoch_is_to_be_trained_the_weights_become_their_averages_as_by_keras():
    def run(trained):
        model = getattr(trained, "model", trained)
        trained.fit(*networks.arrays(), verbose=0)
        model.set_weights([weight + 1 for weight in model.get_weights()])
        trained.fit(*networks.arrays(), initial_epoch=1, verbose=0)
        return model.get_weights()

    networks.assert_alike(*in_turn(run, lambda: networks.sequential(keras.optimizers.SGD(use_ema=True)))[:2])


def test_a_fit_that_cannot_be_assembled_tells_nothing_of_the_one_before(tmp_path):
    trainer = Trainer(pools.sequential())
    trainer.fit(*networks.arrays(), batch_size=32, verbose=0)
    assert trainer.ended == "completed"
    rows = networks.drawn_in_python(*networks.arrays())
    with pytest.raises(ValueError, match="resume needs data"):
        trainer.fit(rows.batch(32), resume=tmp_path, verbose=0)
    assert (trainer.ended, trainer.accounts) == ("failed", [])


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_a_terminal_shows_as_much_as_was_asked_for(verbose, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(Deliveries, "ready", lambda _: False)  # a validation is under way for an epoch
    trainer = Trainer(pools.sequential(), validation=ValidationPolicy(overlap="always"))
    trainer.fit(*networks.arrays(), 32, epochs=2, validation_data=VALIDATION, verbose=verbose)
    shown = sys.stdout.getvalue()
    assert (repr(trainer.accounts) in shown) is bool(verbose)
    assert ("validating 1: " in shown) is (verbose == 1)
    assert ("plan: " in shown) is (verbose == 2)


LOST = (
    *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError),
    tf.errors.DeadlineExceededError,  # where the network between them is cut
)


@pytest.mark.parametrize("kind", LOST)
def test_a_host_that_has_gone_is_told_from_other_failures(kind):
    error = kind(None, None, "deadline exceeded")
    with pytest.raises(HostLostError) as lost:
        module.name_lost_host(error, ThreadHost(0, [None, None], None))
    assert "host 0 cannot go on, because another host has gone" in str(lost.value)
    assert lost.value.__cause__ is error
    module.name_lost_host(error, ThreadHost(0, [None], None))  # whose own error it is
    other = kind(None, None, "Collective instance 187 expected type 0 and data_type 2 but got type 0")
    with pytest.raises(HostMismatchError, match=r"one host alone runs, .* has called"):
        module.name_lost_host(other, ThreadHost(0, [None, None], None))
