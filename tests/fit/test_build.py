"""What a fit consists of is built as it was asked for, and built again without what it keeps all along."""

from __future__ import annotations

import contextlib

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._data.cursor import Cursor
from overlap_train._fit import build as module
from overlap_train._fit.build import FitBuilder
from overlap_train._fit.interrupts import Interrupted
from overlap_train._support.reasons import Reason
from overlap_train.monitoring.progress import ProgressReporter
from tests import networks, pools
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
        self.progress, self.kept = ProgressReporter(9, verbose=0), []
        cursor = Cursor(self.request.feed, self.request.steps_per_epoch)
        self.builder = FitBuilder(self.request, cursor, found, self.progress, resources, self.kept)

    @property
    def in_step(self):
        return [text for text in self.progress.messages if text.startswith("validating in step")]


@pytest.fixture
def fit():
    """Returns a function that prepares a fit; what it builds is closed."""
    with contextlib.ExitStack() as resources:
        yield lambda **options: Fit(resources, **options)


@pytest.mark.nightly
def test_without_checkpoints_there_is_nothing_to_resume(fit, tmp_path):
    parts = fit().builder.build()
    assert (parts.resumption, parts.deliveries.resumer) == (None, None)
    parts = fit(resume=tmp_path).builder.build()
    assert parts.resumption is parts.deliveries.resumer is not None


def test_what_a_fit_keeps_all_along_is_not_built_again(fit, tmp_path):
    one = fit(resume=tmp_path)
    first, second = one.builder.build(), one.builder.build()
    assert second.training is not first.training
    assert second.training.interrupts is first.training.interrupts
    assert second.resumption is first.resumption
    assert second.training.ledger is first.training.ledger is one.builder.ledger


def test_why_it_validates_in_step_is_told_once_however_often_it_is_built(fit):
    one = fit(callbacks=[Acts()])
    for _ in range(2):
        parts = one.builder.build()
        assert parts.deliveries.backlog.max_lag == 0
        assert parts.reasons == (Reason.of("callback-acts", "Acts.on_train_batch_begin"),)
    (told,) = one.in_step
    assert told == f"validating in step with the training: {parts.reasons[0]}"


def test_it_runs_ahead_as_far_as_the_policy_says_where_nothing_speaks_against_it(fit):
    one = fit(max_lag=3)
    parts = one.builder.build()
    assert (parts.deliveries.backlog.max_lag, parts.reasons, one.in_step) == (3, (), [])


def test_epochs_that_are_left_out_are_not_planned_for(fit, monkeypatch):
    asked = []
    build_loop = module.StepBuilder.build_loop

    def kept(builder, step, say):
        asked.append(builder._total_steps)
        return build_loop(builder, step, say)

    monkeypatch.setattr(module.StepBuilder, "build_loop", kept)
    one = fit(initial_epoch=3, epochs=5)
    one.builder.build()
    assert asked == [2 * one.request.feed.num_batches]
    assert one.builder.ledger.course.next_epoch == 3


class Unknown(keras.callbacks.Callback):
    """May set anything."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.anything = batch


def test_a_validation_is_built_at_once_if_nothing_can_be_set_before_it(fit):
    parts = fit(model=networks.sequential()).builder.build()
    assert parts.deliveries.suite.waiting == []
    assert not parts.is_provisional


def test_behind_hooks_of_the_user_it_is_built_when_it_is_due(fit):
    one = fit(model=networks.sequential(), callbacks=[Unknown()])
    parts = one.builder.build()
    assert parts.deliveries.suite.waits_for(0)
    parts.sources.read(0)
    parts = one.builder.build(parts.training)
    assert parts.deliveries.suite.waiting == []
    one.trainer.model.make_test_function(force=True)  # after which Keras traces again
    assert one.builder.build().deliveries.suite.waits_for(1)


def test_what_checkpoints_hold_is_built_at_once_and_again(fit, tmp_path):
    one = fit(model=networks.sequential(), callbacks=[Unknown()], resume=tmp_path)
    parts = one.builder.build()
    assert parts.is_provisional
    parts.sources.read(0)
    assert not one.builder.build(parts.training).is_provisional


def test_without_validation_there_is_nothing_to_be_traced_again(fit):
    parts = fit(model=networks.sequential(), validation_data=None).builder.build()
    assert not parts.is_provisional
    assert not parts.deliveries.suite


@pytest.mark.parametrize(
    ("policy", "validation", "inside"),
    [
        ({}, True, False),
        ({"every_steps": 3}, True, True),
        ({"every_steps": 3}, False, False),
    ],
)
def test_epochs_are_validated_inside_where_it_was_asked_for_and_there_is_something_to_do(
    fit, policy, validation, inside
):
    data = {} if validation else {"validation_data": None}
    parts = fit(**policy, **data).builder.build()
    assert (parts.deliveries.stepwise is not None) is inside


def test_a_signal_ends_the_waits_of_one_host_alone(fit, monkeypatch):
    one = fit()
    parts = one.builder.build()
    parts.deliveries.check_interrupted()
    parts.training.interrupts.received = "SIGTERM"
    with pytest.raises(Interrupted):
        parts.deliveries.check_interrupted()
    settings = type(one.request.settings)
    monkeypatch.setattr(settings, "hosts", property(lambda _: ThreadHost(0, [None, None], None)))
    parts.deliveries.check_interrupted()


def test_snapshots_say_where_the_training_stands(fit):
    one = fit()
    parts = one.builder.build()
    one.builder.ledger.course.step = 11
    snapshot = parts.training.take_snapshot(2)
    assert (snapshot.epoch, snapshot.step) == (2, 11)
    assert snapshot.position == parts.training.cursor.state()
    assert len(snapshot.values.flat()) == len(parts.state.variables)


def test_a_model_without_an_optimizer_is_not_built(fit):
    model = networks.sequential()
    model.compile(None, networks.crossentropy())
    with pytest.raises(ValueError, match="optimizer"):
        fit(model=model).builder.build()
