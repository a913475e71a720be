"""The account of a fit adds up to what the call took, and its sentence is true, however the fit ends."""

import functools
import signal
import time

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays
from tests.pools import sequential
from tests.whole_fits.comparing import IN_STEP, AtEpoch, halves

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


def in_second(act):
    return lambda: AtEpoch(lambda callback, epoch: act(callback.model) if epoch == 1 else None)


def stop(model):
    model.stop_training = True


interrupted = in_second(lambda model: signal.raise_signal(signal.SIGTERM))
FITS = {
    "ahead": {},
    "in step by request": dict(policy=IN_STEP),
    "in step by a callback": dict(callback=Acts),
    "with other weights": dict(callback=Swaps),
    "without validation": dict(validation_data=None),
    "not every epoch": dict(validation_freq=2),
    "rolled back": dict(callback=lambda: halves(1)),
    "stopped": dict(callback=in_second(stop)),
    "interrupted": dict(callback=interrupted),
    "validated inside epochs": dict(policy=ValidationPolicy(overlap="always", every_steps=5)),
}


def fit(callback=None, policy=AHEAD, **arguments):
    """Return the trainer of a fit, and the seconds that it took by the clock."""
    trainer, callbacks = Trainer(sequential(), validation=policy), [callback()] if callback else []
    given = {"epochs": 4, "verbose": 0, "validation_data": VALIDATION, "callbacks": callbacks, **arguments}
    start_s = time.monotonic()
    trainer.fit(X, Y, batch_size=8, **given)
    return trainer, time.monotonic() - start_s


@functools.cache
def fitted(name):
    return fit(**FITS[name])


def assert_adds_up(trainer):
    account, epochs, history = trainer.account, trainer.accounts, trainer.model.history
    parts = [account.prepared_s, account.undelivered_s, *(epoch.seconds for epoch in epochs)]
    assert all(part >= 0 for part in parts)
    assert account.fit_s == pytest.approx(sum(parts), abs=1e-6)
    for name in ("validated_s", "hidden_s", "waited_s", "rolled_back_s"):
        assert getattr(account, name) == pytest.approx(sum(getattr(epoch, name) for epoch in epochs))
    assert account.hidden_s <= account.validated_s
    assert (history.account, history.accounts) == (account, epochs)
    spans = trainer.recorder.spans()
    assert {"trace", "train", "snapshot", "deliver"} <= {span.name for span in spans}
    assert all(span.details["steps"] is not None for span in spans if span.name == "train")


@pytest.mark.parametrize("name", FITS)
def test_the_rows_add_up_to_the_fit(name):
    trainer, took_s = fitted(name)
    assert_adds_up(trainer)
    assert 0 < trainer.account.fit_s <= took_s


def test_a_resumed_fit_adds_up(tmp_path):
    fit(interrupted, resume=tmp_path)
    again, _ = fit(resume=tmp_path)
    assert any(text.startswith("resumed") for text in again.messages)
    assert [epoch.epoch for epoch in again.accounts][-1] == 3
    assert_adds_up(again)


@pytest.mark.parametrize("name", ["in step by request", "in step by a callback"])
def test_in_step_nothing_is_hidden_or_saved_and_all_is_waited_for(name):
    account = fitted(name)[0].account
    assert (account.hidden_s, account.saved_s) == (0, 0)
    assert account.waited_s > 0
    assert str(account).startswith("validation 0% hidden; no time saved; ")


def test_what_is_claimed_of_the_others_is_true():
    trainer, _ = fitted("without validation")
    assert str(trainer.account) == "nothing was validated"
    assert not any("validated" in text for text in trainer.messages)
    assert fitted("validated inside epochs")[0].account.saved_s is None
    assert all(epoch.waited_s > 0 for epoch in fitted("with other weights")[0].accounts)
    trainer, _ = fitted("interrupted")
    assert trainer.ended == "interrupted by SIGTERM"
    assert ("partial" in str(trainer.accounts)) == (trainer.account.undelivered_s >= 0.005)


def test_only_what_was_undone_was_rolled_back():
    assert fitted("ahead")[0].account.rolled_back_s == 0
    trainer, _ = fitted("rolled back")
    undone = any(text.startswith("back to the end of epoch 2") for text in trainer.messages)
    assert [epoch.epoch for epoch in trainer.accounts if epoch.rolled_back_s] == ([1] if undone else [])
    assert trainer.account.undelivered_s == 0


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
def test_the_first_line_says_how_epochs_are_validated(name, first):
    said = [text for text in fitted(name)[0].messages if not text.startswith("plan: ")]
    assert said[0].startswith(first)
