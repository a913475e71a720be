"""A first signal ends a fit in order, a second one at once."""

from __future__ import annotations

import os
import signal

import keras
import pytest

from overlap_train import Trainer
from tests.networks import arrays, sequential

VALIDATION = arrays(40, 1)


class Signal(keras.callbacks.Callback):
    """Sends signals to this process at the end of an epoch."""

    def __init__(self, epoch: int, *signals: signal.Signals) -> None:
        super().__init__()
        self.epoch, self.signals = epoch, signals

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            for number in self.signals:
                os.kill(os.getpid(), number)


@pytest.fixture
def handlers():
    """Python's own handlers, also where Ctrl-C is ignored in the background or another test has left some."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_returns_the_partial_history(number, handlers):
    before = signal.getsignal(number)
    trainer = Trainer(sequential())
    history = trainer.fit(
        *arrays(), epochs=50, validation_data=VALIDATION, callbacks=[Signal(1, number)], verbose=0
    )
    assert trainer.ended == history.ended == f"interrupted by {number.name}"
    assert history.epoch[:2] == [0, 1]
    assert 2 <= len(history.epoch) < 50
    assert len(history.history["val_loss"]) == len(history.epoch)
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_at_once(handlers):
    trainer = Trainer(sequential())
    with pytest.raises(KeyboardInterrupt, match="SIGINT, then SIGINT"):
        trainer.fit(
            *arrays(),
            epochs=50,
            validation_data=VALIDATION,
            callbacks=[Signal(0, signal.SIGINT, signal.SIGINT)],
            verbose=0,
        )
    assert trainer.ended == "failed"
