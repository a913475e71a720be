"""The checkpoints of a `fit`: whether its data allows them, what they leave out, and when one is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._callbacks.delivery import Outcome
from overlap_train._callbacks.inside import EpochHooks
from overlap_train._checkpoint.attributes import beside
from overlap_train._checkpoint.content import StartPoint, require_storable
from overlap_train._checkpoint.fingerprints import (
    describe_configuration,
    describe_feed,
    fingerprint,
)
from overlap_train._checkpoint.resume import Resumer
from overlap_train._checkpoint.run_directory import RunWriter
from overlap_train._data.cursor import CursorState
from overlap_train._data.feed import Feed
from overlap_train._data.pass_state import SourceState, seeds_of, unseeded_draws
from overlap_train._data.pipeline import caches_draws, captured_by, keeps_more_than_variables, reorders
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._fit.course import Course
from overlap_train._fit.draws import shared_draws
from overlap_train._fit.interrupts import Interrupted
from overlap_train._fit.request import FitRequest
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train._training.settings import function_name
from overlap_train._training.step import Step
from overlap_train._validation.backlog import Backlog
from overlap_train._validation.passes import ValidationPasses
from overlap_train._validation.step_validations import StepValidations
from overlap_train.parallel.hosts import Hosts

_ALIKE = "shuffle(…, reshuffle_each_iteration=False) and arrays are the same in each validation"

# The fields of a `ValidationPolicy` on which a history may depend.
_REPORTED_FIELDS = ("backlog", "on_change", "on_error", "every_steps")


def build_resumer(
    request: FitRequest,
    state: ModelState,
    step: Step,
    drawing: Mapping[str, StreamedBatches],
    say: Callable[[str], None],
    resources: contextlib.ExitStack,
) -> Resumer | None:
    """Returns what writes the checkpoints of a `fit`, and has read the newest.

    Checkpoints belong to the chief: on other hosts there is no resumer.
    """
    feed, settings = request.feed, request.settings
    # Together, because hosts with rows of their own may have different kinds of data.
    settings.hosts.all_do(lambda: _require_findable(request, drawing))
    require_storable([*state.variables, *feed.written_variables])
    _say_not_stored(step, feed, say)
    _say_unseeded(request, drawing, say)
    if feed.unsaved:
        say(
            f"a resumed fit takes these attributes of its data as they then are: {', '.join(feed.unsaved)}; "
            "what they hold cannot be stored (get_state and set_state would say what can)"
        )
    states = _python_of_sets(request, say)
    rows, passes = _rows_of_others(request), ValidationPasses(drawing, say, states)
    resumer: Resumer | None = settings.hosts.chief_first(
        lambda: _make_resumer(request, state, rows, passes, say, resources)
    )
    return resumer


def _python_of_sets(request: FitRequest, say: Callable[[str], None]) -> dict[str, SourceState]:
    """Returns what takes the state of each `PyDataset` that is validated on here, by the set's name.

    Says what of the validation data is in no checkpoint.
    """
    note, states = beside(request.model, of_all=False), dict[str, SourceState]()
    for name, data in _inputs_of_sets(request).items():
        of = f" of set {name!r}" if name else ""
        if hasattr(data, "__next__"):
            say(f"a resumed fit begins the generator{of} that it validates on anew, wherever that stood")
        elif isinstance(data, keras.utils.PyDataset) and request.settings.validates_alone:
            states[name] = note(data)
            if states[name].left_out:
                names = ", ".join(states[name].left_out)
                say(
                    f"a resumed fit takes these attributes of its validation data{of} as they then are: "
                    f"{names}"
                )
    return states


def _say_not_stored(step: Step, feed: Feed, say: Callable[[str], None]) -> None:
    """Says what training steps do that no variable holds and a later step may depend on."""
    for function, name in ((step.traced, "the training step"), (feed.preparation, "preprocess")):
        effects = function.effects if function is not None else ()
        effect = next((each for each in effects if not each.only_tells), None)
        if effect is not None:
            say(f"a resumed fit has other numbers than an unbroken one, because {name} {effect}")


def _say_unseeded(
    request: FitRequest, drawing: Mapping[str, StreamedBatches], say: Callable[[str], None]
) -> None:
    """Says which data draws at random otherwise in another process."""
    inputs, unseeded = _inputs_of_sets(request), {"the training data": request.feed.unseeded}
    for name, each in inputs.items():
        of, batches, shuffles = f" of set {name!r}" if name else "", drawing.get(name), reorders(each)
        if batches is None:
            is_lost = shuffles or keeps_more_than_variables(each)
        else:  # whose passes are counted, unless they draw as they are read
            is_lost = batches.redraws
        if is_lost or (shuffles and request.validates_inside):
            say(
                f"a resumed fit has other numbers than an unbroken one, because the validation data{of} "
                f"draws as it is read, or caches what it draws; {_ALIKE}"
            )
        elif batches is None or not batches.seed_passes():
            unseeded[f"the validation data{of}"] = unseeded_draws(each)
    for data, draws in unseeded.items():
        if draws:
            say(
                f"a resumed fit has other numbers than an unbroken one, because {data} draws without a seed "
                f"({', '.join(dict.fromkeys(draws))}); give it one, or call keras.utils.set_random_seed "
                "before the data is made"
            )


def _inputs_of_sets(request: FitRequest) -> dict[str, Any]:
    """Returns the `x` of each validation set by name: a dataset or generator, or arrays."""
    return {name: keras.utils.unpack_x_y_sample_weight(each.data)[0] for name, each in request.sets.items()}


def _require_findable(request: FitRequest, drawing: Mapping[str, StreamedBatches]) -> None:
    """Refuses data that would go on otherwise than in the unbroken fit; see `build_resumer`."""
    feed, settings, inputs = request.feed, request.settings, _inputs_of_sets(request)
    reason = None
    if feed.user_dataset is not None and caches_draws(feed.user_dataset):
        reason = (
            "the training data caches what it draws at random or from a variable; draw behind the cache, as "
            "in dataset.cache().map(…), or leave the cache out"
        )
    moving = [each for each in inputs.values() if reorders(each) or keeps_more_than_variables(each)]
    moving += [v for each in inputs.values() for v in captured_by(each) if v.written]
    if not settings.validates_alone and (drawing or moving):
        reason = f"the validation data is drawn anew each time, on several hosts; {_ALIKE}"
    # A checkpoint counts the draws of both where each pass of the training ends before a validation.
    goes_on = request.steps_per_epoch not in (None, feed.num_batches) or request.validates_inside
    shared = shared_draws(feed, [each.data for each in request.sets.values()], of_variables=goes_on)
    if shared is not None:
        reason = f"the training and the validation data share {shared}; one for each would do"
    if reason is not None:
        raise ValueError(f"resume cannot draw again what this data draws: {reason}")
    findable, python = feed.remember(beside(request.model)), ", a PyDataset, a generator, Grain,"
    if settings.hosts.count > 1:  # of each of which a checkpoint has the chief's state alone
        findable = findable and not feed.written_variables
    if settings.own_rows:
        findable, python = findable and feed.rewindable, ""
    if not findable:
        raise ValueError(
            f"resume needs data whose position can be found again: arrays{python} or a tf.data.Dataset "
            "without Python functions and state that no variable holds; this data has one or the other "
            "(Hugging Face's to_tf_dataset(shuffle=True) needs keras.utils.set_random_seed before it)"
        )


def _rows_of_others(request: FitRequest) -> dict[str, str]:
    """Describes the training data of the other hosts, where each has its own."""
    settings = request.settings
    if not settings.own_rows:
        return {}
    described = settings.hosts.gather(describe_feed(request.feed))
    return {
        part.replace("training data", f"training data of host {host}", 1): text
        for host, texts in enumerate(described[1:], start=1)
        for part, text in texts.items()
    }


def _make_resumer(
    request: FitRequest,
    state: ModelState,
    rows: Mapping[str, str],
    passes: ValidationPasses,
    say: Callable[[str], None],
    resources: contextlib.ExitStack,
) -> Resumer:
    feed, settings = request.feed, request.settings
    policy = request.checkpoints
    assert policy is not None
    weights: RunWriter | None = None
    if policy.keep_weights is not None and not request.elsewhere:
        weights = RunWriter(policy.directory, request.model, settings.described_validation)
        resources.enter_context(weights)  # ends behind the last
    resumer = Resumer(
        policy,
        request.model,
        {**fingerprint(request.model, feed), **rows, **request.described_validation},
        state,
        configuration=_reported_settings(request),
        passes=passes,
        weights=weights,
        say=say,
        record=settings.recorder.add,
    )
    resources.enter_context(resumer)
    if weights is not None:
        weights.open()
    return resumer


def _reported_settings(request: FitRequest) -> dict[str, str]:
    """Returns what may differ when a training goes on, but is reported."""
    settings, model = request.settings, request.model
    policy = {
        f"ValidationPolicy.{name}": repr(getattr(settings.validation, name)) for name in _REPORTED_FIELDS
    }
    data = {"training data": request.feed.user_dataset}
    data |= {f"validation data {name!r}": inputs for name, inputs in _inputs_of_sets(request).items()}
    seeds = {f"{name}.seeds of shuffles": seeds_of(source) for name, source in data.items()}
    return {
        **describe_configuration(model),
        **policy,
        **{name: str(each) for name, each in seeds.items() if each},
        "fit.steps_per_epoch": str(request.steps_per_epoch or request.feed.num_batches),
        "Trainer.train_step": "stock" if settings.stock else function_name(settings.train_step),
        "Trainer.preprocess": function_name(settings.preprocess),
    }


@dataclass(frozen=True)
class Checkpoints:
    """Writes the checkpoints of a fit that runs. On the training thread.

    A checkpoint is of a delivered epoch, or of a place between two steps where no epoch, no hook and no
    result inside an epoch waits for its delivery.
    """

    resumer: Resumer
    _course: Course
    _backlog: Backlog
    _hooks: EpochHooks
    _stepwise: StepValidations | None
    _hosts: Hosts
    _check_interrupted: Callable[[], None]

    def write_delivered(self, snapshot: Snapshot, outcome: Outcome, position: CursorState) -> None:
        """Writes a checkpoint of an epoch that has been delivered, if one is due."""
        if not self._finish_inside(snapshot.epoch):
            return
        following, course = snapshot.epoch + 1, self._course
        self.resumer.delivered(
            StartPoint(following, snapshot.step, course.stopped, dict(outcome.logs), position),
            outcome.values,
            last=course.stopped or following >= course.epochs,
            max_lag=self._backlog.max_lag,
            trained=snapshot.values,
        )

    def may_write(self) -> bool:
        """Whether nothing waits for its delivery, and no callback has stopped the training."""
        is_idle = self._stepwise is None or self._stepwise.idle
        # A begun epoch: its hook has been called by the delivery that took it back.
        return is_idle and not (len(self._backlog) or self._hooks.has_begun or self._course.stopped)

    def due(self) -> bool:
        """Whether a checkpoint inside the present epoch is to be written now."""
        if len(self._backlog) or not self.resumer.due_inside(self._course.step):
            return False
        return self._finish_inside(None) and self.may_write()

    def write(self, snapshot: Snapshot) -> None:
        """Writes a checkpoint of where the training stands; see `may_write`."""
        epoch, course = snapshot.epoch, self._course
        logs = dict(course.logs.get(epoch - 1, {}))
        point = StartPoint(epoch, snapshot.step, course.stopped, logs, snapshot.position)
        self.resumer.inside(point, snapshot.values)

    def _finish_inside(self, epoch: int | None) -> bool:
        """Delivers the results inside epochs, up to an epoch's end or all: a checkpoint holds none.

        Returns whether it did. After a signal it waits for none, and the checkpoint before stays.
        """
        if self._stepwise is not None and self._hosts.count == 1:
            try:
                self._stepwise.wait(self._check_interrupted)
            except Interrupted:
                return False
            self._stepwise.release(epoch)
        return True


def describe_start(point: StartPoint, course: Course, plan: str, say: Callable[[str], None]) -> None:
    """Says from where a resumed fit goes on."""
    if point.plan not in ("", plan):
        say(f"the steps may round otherwise than before the checkpoint, where the plan was: {point.plan}")
    if point.position.within:
        say(f"resumed inside epoch {point.epoch + 1}, after {point.position.steps} of its steps")
        return
    say(f"resumed after epoch {point.epoch}")
    if point.stopped or point.epoch >= course.epochs:
        why = "a callback had stopped it" if point.stopped else "all its epochs are done"
        say(f"nothing is left to train: {why}; another directory starts afresh")
