"""What a fit consists of is built as it was asked for, and built again without what it keeps all along."""

import contextlib
import signal

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._data.cursor import Cursor
from overlap_train._fit.build import FitBuilder
from overlap_train._fit.course import FitOutcome
from overlap_train._fit.interrupts import Interrupted
from overlap_train._support.reasons import Reason
from overlap_train.monitoring.quiet import QuietProgress
from tests import pools
from tests.fit.requests import request_of
from tests.networks import arrays
from tests.parallel.together import ThreadHost


class Acts(keras.callbacks.Callback):
    """Has to be called between two steps."""

    def on_train_batch_begin(self, epoch, logs=None):
        self.model.stop_training = epoch > 7


class Fit:
    """A builder with what it is given."""

    def __init__(self, resources, *, callbacks=(), resume=None, **options):
        policy = {name: options.pop(name) for name in list(options) if hasattr(ValidationPolicy(), name)}
        self.trainer = Trainer(
            options.pop("model", None) or pools.sequential(), validation=ValidationPolicy(**policy)
        )
        options = {"validation_data": arrays(40, 1), "batch_size": 32, **options}
        self.request = request_of(self.trainer, resume=resume, **options)
        found = keras.callbacks.CallbackList(
            list(callbacks), add_history=True, model=self.trainer.model, epochs=self.request.epochs
        )
        self.progress, outcome = QuietProgress(), FitOutcome()
        cursor = Cursor(self.request.feed, self.request.steps_per_epoch)
        self.builder = FitBuilder(self.request, cursor, found, self.progress, resources, outcome)

    @property
    def in_step(self):
        return [text for text in self.progress.messages if text.startswith("validating in step")]


@pytest.fixture
def fit():
    """Returns a function that prepares a fit; what it builds is closed."""
    with contextlib.ExitStack() as resources:
        yield lambda **options: Fit(resources, **options)


def test_what_a_fit_keeps_all_along_is_not_built_again(fit, tmp_path):
    one = fit(resume=tmp_path)
    first, second = one.builder.build(), one.builder.build()
    assert second.training is not first.training
    assert second.training.interrupts is first.training.interrupts
    assert second.deliveries.resumer is first.deliveries.resumer is not None
    assert second.training.ledger is first.training.ledger is one.builder.ledger


def test_why_it_validates_in_step_is_told_once_however_often_it_is_built(fit):
    one = fit(callbacks=[Acts()])
    for _ in range(2):
        parts = one.builder.build()
        assert parts.deliveries.backlog.max_lag == 0
        assert parts.reasons == (Reason.of("callback-acts", "Acts.on_train_batch_begin"),)
    (told,) = one.in_step
    assert told == f"validating in step with the training: {parts.reasons[0]}"


def test_a_signal_ends_the_waits_of_one_host_alone(fit, monkeypatch):
    one = fit()
    parts = one.builder.build()
    parts.deliveries.check_interrupted()
    assert parts.training.interrupts._listen(bytes([signal.SIGTERM])) is not None, "it insists"
    parts.training.interrupts.heed()
    parts.training.interrupts._receive("SIGTERM")
    with pytest.raises(Interrupted):
        parts.deliveries.check_interrupted()
    settings = type(one.request.settings)
    monkeypatch.setattr(settings, "hosts", property(lambda _: ThreadHost(0, [None, None], None)))
    parts.deliveries.check_interrupted()
