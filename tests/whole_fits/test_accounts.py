"""The account of a fit adds up to what the call took, and its sentence is true, however the fit ends."""

from __future__ import annotations

import signal
import time

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays
from tests.pools import sequential

kc = keras.callbacks
X, Y = arrays(130)
VALIDATION = arrays(70, 1)
AHEAD = ValidationPolicy(overlap="always")


class Acts(kc.Callback):
    """Has to be called between two steps, so the training waits for each validation."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.iterations.assign_add(0)


class Swaps(kc.Callback):
    """Has the snapshot evaluated with other weights, as SwapEMAWeights does."""

    def on_test_begin(self, logs=None):
        self.model.layers[0].bias.assign_add([0.1] * 16)


def at_epoch(number, act):
    return kc.LambdaCallback(on_epoch_end=lambda epoch, logs: act() if epoch == number else None)


def interrupt():
    signal.raise_signal(signal.SIGTERM)


def halve(model):
    model.optimizer.learning_rate.assign(0.5 * float(model.optimizer.learning_rate))


class Fit:
    """A fit that has ended: what it took by the clock, and its trainer."""

    def __init__(self, callbacks=(), policy=AHEAD, validation_data=VALIDATION, **arguments):
        self.trainer = Trainer(sequential(), validation=policy)
        callbacks = [each(self.trainer.model) for each in callbacks]
        start_s = time.monotonic()
        self.trainer.fit(
            X,
            Y,
            batch_size=8,
            epochs=4,
            verbose=0,
            callbacks=callbacks,
            validation_data=validation_data,
            **arguments,
        )
        self.took_s = time.monotonic() - start_s
        self.account, self.accounts = self.trainer.account, self.trainer.accounts


def stopping(model):
    return at_epoch(1, lambda: setattr(model, "stop_training", True))


FITS = {
    "ahead": {},
    "in step by request": dict(policy=ValidationPolicy(max_lag=0)),
    "in step by a callback": dict(callbacks=[lambda model: Acts()]),
    "with other weights": dict(callbacks=[lambda model: Swaps()]),
    "without validation": dict(validation_data=None),
    "not every epoch": dict(validation_freq=2),
    "rolled back": dict(callbacks=[lambda model: at_epoch(1, lambda: halve(model))]),
    "stopped": dict(callbacks=[stopping]),
    "interrupted": dict(callbacks=[lambda model: at_epoch(1, interrupt)]),
    "validated inside epochs": dict(policy=ValidationPolicy(overlap="always", every_steps=5)),
}


@pytest.fixture(scope="module")
def fits():
    made = {}

    def fit(name):
        if name not in made:
            made[name] = Fit(**FITS[name])
        return made[name]

    return fit


def assert_adds_up(trainer):
    account, epochs, history = trainer.account, trainer.accounts, trainer.model.history
    parts = [account.prepared_s, account.undelivered_s, *(epoch.seconds for epoch in epochs)]
    assert all(part >= 0 for part in parts)
    assert account.fit_s == pytest.approx(sum(parts), abs=1e-6)
    for name in ("validated_s", "hidden_s", "waited_s", "rolled_back_s"):
        assert getattr(account, name) == pytest.approx(sum(getattr(epoch, name) for epoch in epochs))
    assert account.hidden_s <= account.validated_s
    assert (history.account, history.accounts) == (account, epochs)
    assert "trace" in {span.name for span in trainer.recorder.spans()}


@pytest.mark.parametrize("name", FITS)
def test_the_rows_add_up_to_the_fit(fits, name):
    fit = fits(name)
    assert_adds_up(fit.trainer)
    assert 0 < fit.account.fit_s <= fit.took_s


def test_a_resumed_fit_adds_up(tmp_path):
    Fit(callbacks=[lambda model: at_epoch(1, interrupt)], resume=tmp_path)
    again = Fit(resume=tmp_path)
    assert any(text.startswith("resumed") for text in again.trainer.messages)
    assert [epoch.epoch for epoch in again.accounts][-1] == 3
    assert_adds_up(again.trainer)


@pytest.mark.parametrize("name", ["in step by request", "in step by a callback"])
def test_in_step_nothing_is_hidden_or_saved_and_all_is_waited_for(fits, name):
    account = fits(name).account
    assert (account.hidden_s, account.saved_s) == (0, 0)
    assert account.waited_s > 0
    assert str(account).startswith("validation 0% hidden; no time saved; ")


def test_a_validation_with_other_weights_is_waited_for(fits):
    for epoch in fits("with other weights").accounts:
        assert epoch.waited_s > 0
        assert epoch.validated_s > 0


def test_without_validation_there_is_nothing_to_say(fits):
    fit = fits("without validation")
    assert str(fit.account) == "nothing was validated"
    assert "validat" not in str(fit.accounts).splitlines()[-1]
    assert not any("validated" in text for text in fit.trainer.messages)


def test_only_what_was_undone_was_rolled_back(fits):
    assert fits("ahead").account.rolled_back_s == 0
    fit = fits("rolled back")
    undone = any(text.startswith("back to the end of epoch 2") for text in fit.trainer.messages)
    assert [epoch.epoch for epoch in fit.accounts if epoch.rolled_back_s] == ([1] if undone else [])
    assert fit.account.undelivered_s == 0


def test_what_an_interrupted_fit_did_not_deliver_is_partial(fits):
    fit = fits("interrupted")
    assert fit.trainer.ended == "interrupted by SIGTERM"
    delivered = len(fit.accounts)
    assert fit.account.undelivered_s > 0 or delivered == 4
    assert ("partial" in str(fit.accounts)) == (fit.account.undelivered_s >= 0.005)


def test_what_validations_inside_epochs_gain_is_not_claimed(fits):
    assert fits("validated inside epochs").account.saved_s is None


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ahead", "each epoch is validated while the next one is trained"),
        ("in step by request", "each epoch is validated before the next one is trained (max_lag=0)"),
        (
            "in step by a callback",
            "validating in step with the training: Acts.on_train_batch_end must not run",
        ),
    ],
)
def test_the_first_line_says_how_epochs_are_validated(fits, name, first):
    said = [text for text in fits(name).trainer.messages if not text.startswith("plan: ")]
    assert said[0].startswith(first)
