"""The checkpoints of a `fit`: whether its data allows them, and what a resumed fit would do otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._checkpoint.attributes import beside, plain_attributes
from overlap_train._checkpoint.content import require_storable
from overlap_train._checkpoint.fingerprints import (
    describe_configuration,
    describe_feed,
    describe_sets,
    fingerprint,
    rate_text,
)
from overlap_train._checkpoint.resume import Resumer
from overlap_train._checkpoint.run_directory import RunWriter
from overlap_train._data.feed import Feed
from overlap_train._data.pass_state import SourceState, seeds_of, unseeded_draws
from overlap_train._data.pipeline import (
    caches_draws,
    captured_by,
    keeps_more_than_variables,
    reorders,
    shuffles_of,
)
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._fit.draws import shared_shuffles
from overlap_train._fit.followers import AnyStart, SharedStart
from overlap_train._fit.request import FitRequest
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._keras import training as keras_training
from overlap_train._snapshot import ModelState
from overlap_train._training.step import Step
from overlap_train._validation.passes import ValidationPasses

# The fields of a `ValidationPolicy` on which a history may depend.
_REPORTED_FIELDS = ("backlog", "on_change", "on_error", "every_steps")


def build_resumer(
    request: FitRequest,
    state: ModelState,
    step: Step,
    drawing: Mapping[str, StreamedBatches],
    say: Callable[[str], None],
    resources: contextlib.ExitStack,
) -> tuple[Resumer | None, AnyStart | None]:
    """Returns what writes the checkpoints of a `fit`, and what starts all of its hosts from the newest.

    Checkpoints belong to the chief: on other hosts there is no resumer.
    """
    feed, settings = request.feed, request.settings
    _require_findable(request, drawing)
    require_storable([*state.variables, *feed.written_variables])
    _say_not_stored(step, feed, say)
    _say_unseeded(request, drawing, say)
    if feed.unsaved:
        say(
            f"a resumed fit takes these attributes of its data as they then are: {', '.join(feed.unsaved)}; "
            "what they hold cannot be stored (get_state and set_state would say what can)"
        )
    states = _python_of_sets(request, say)
    rows = _rows_of_others(request)
    resumer: Resumer | None = settings.hosts.chief_first(
        lambda: _make_resumer(request, state, rows, say, resources)
    )
    if resumer is not None:
        resumer.watch_passes(ValidationPasses(drawing, say, states))
    hosts = settings.hosts
    return resumer, resumer if hosts.count == 1 else SharedStart(hosts, request.model, resumer)


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
    unseeded = {"the training data": request.feed.unseeded}
    for name, inputs in _inputs_of_sets(request).items():
        of = f" of set {name!r}" if name else ""
        if name in drawing and drawing[name].redraws:
            say(
                f"a resumed fit has other numbers than an unbroken one, because the validation data{of} "
                f"draws as it is read, or caches what it draws; {_ALIKE}"
            )
        elif name not in drawing or not drawing[name].seed_passes():
            unseeded[f"the validation data{of}"] = unseeded_draws(inputs)
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
    feed, settings = request.feed, request.settings
    reason = _undrawable(request, drawing)
    if reason is not None:
        raise ValueError(f"resume cannot draw again what this data draws: {reason}")
    findable, python = feed.remember(beside(request.model)), ", a PyDataset, a generator, Grain,"
    if settings.hosts.count > 1:  # of each of which a checkpoint has the chief's state alone
        findable = findable and not feed.written_variables
    if settings.replicas is not None and settings.replicas.own_rows:
        findable, python = findable and feed.rewindable, ""
    if not findable:
        raise ValueError(
            f"resume needs data whose position can be found again: arrays{python} "
            "or a tf.data.Dataset without Python functions and state that no variable holds (Hugging Face's "
            "to_tf_dataset(shuffle=True) needs keras.utils.set_random_seed before it); this data has one"
        )


def _rows_of_others(request: FitRequest) -> dict[str, str]:
    """Describes the training data of the other hosts, where each has its own."""
    settings = request.settings
    if settings.replicas is None or not settings.replicas.own_rows:
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
    say: Callable[[str], None],
    resources: contextlib.ExitStack,
) -> Resumer:
    feed, settings = request.feed, request.settings
    policy = request.checkpoints
    assert policy is not None
    weights: RunWriter | None = None
    if policy.keep_weights is not None and not request.elsewhere:
        weights = resources.enter_context(RunWriter(policy.directory, request.model))  # ends behind the last
    resumer = Resumer(
        policy,
        {**fingerprint(request.model, feed), **rows, **_describe_validation(request)},
        state,
        attributes=lambda: plain_attributes(request.model),
        configuration=_reported_settings(request),
        rate=lambda: rate_text(request.model),
        weights=weights,
        trained_by=lambda: keras_training.train_function(request.model),
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
        "Trainer.train_step": "stock" if settings.stock else _name(settings.train_step),
        "Trainer.preprocess": _name(settings.preprocess),
    }


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _describe_validation(request: FitRequest) -> dict[str, str]:
    """Describes what a history's `val_` values come from."""
    settings = request.settings
    step = "stock" if settings.stock_validation else _name(settings.validation_step)
    preprocess = {"validation_step.preprocess": "a function"} if settings.preprocess is not None else {}
    functions = {
        f"evaluation function {name!r}": f"{_name(each.function)}, freq {each.freq}"
        for name, each in request.functions.items()
    }
    return {**describe_sets(request.sets), "validation_step": step, **preprocess, **functions}


_ALIKE = "shuffle(…, reshuffle_each_iteration=False) and arrays are the same in each validation"


def _undrawable(request: FitRequest, drawing: Mapping[str, StreamedBatches]) -> str | None:
    """Returns what the data draws that a resumed fit would draw otherwise, and the remedy; or None."""
    feed = request.feed
    if feed.user_dataset is not None and caches_draws(feed.user_dataset):
        return (
            "the training data caches what it draws at random or from a variable; draw behind the cache, as "
            "in dataset.cache().map(…), or leave the cache out"
        )
    data = _inputs_of_sets(request)
    if shared_shuffles(feed, [each.data for each in request.sets.values()]):
        return (
            "the training and the validation data come from one shuffle, and draw from its seeds in turn; "
            "shuffle(…, reshuffle_each_iteration=False), or a shuffle of its own for each, would do"
        )
    for name, each in data.items():
        reason = _of_set(request, each, drawing.get(name))
        if reason is not None:
            return reason
    return _in_turn(request, data)


def _of_set(request: FitRequest, data: Any, batches: StreamedBatches | None) -> str | None:
    """Returns what is drawn for a validation set and found in no checkpoint, or None."""
    if keeps_more_than_variables(data) and len(request.feed.reads) > len(request.feed.captured):
        return (
            "the training and the validation data may share a table, an iterator, a queue or a captured "
            "dataset; a tf.Variable, or one for each, would do"
        )
    shuffles = reorders(data)
    moves = batches is not None or shuffles or keeps_more_than_variables(data)
    elsewhere = not request.settings.validates_alone
    if elsewhere and (moves or any(variable.written for variable in captured_by(data))):
        return f"the validation data is drawn anew each time, on several hosts; {_ALIKE}"
    if batches is None and moves:
        return f"an evaluate of the model's own draws the validation data; {_ALIKE}"
    if shuffles and request.validates_inside:
        return f"the validation data is shuffled anew, also for validations inside epochs; {_ALIKE}"
    return None


def _in_turn(request: FitRequest, data: Mapping[str, Any]) -> str | None:
    """Returns which variables or shuffles several draw from, where that cannot be had again; or None."""
    feed = request.feed
    of_training = _Sources.of(feed.captured, feed.shuffles)
    goes_on = request.steps_per_epoch not in (None, feed.num_batches) or request.validates_inside
    hidden = [name for name, each in data.items() if keeps_more_than_variables(each)]
    if len(hidden) > 1:
        return (
            f"the sets {hidden[0]!r} and {hidden[1]!r} may share a table, an iterator, a queue or a dataset"
        )
    for each in data.values():
        shared = _Sources.of(captured_by(each), shuffles_of(each)).in_turn_with(of_training)
        if shared and goes_on:
            return (
                f"the training and the validation data share {shared}, in the middle of a pass over the "
                "training data; one for each would do"
            )
    return None


@dataclass(frozen=True)
class _Sources:
    """What a pipeline draws from.

    Variables by the `id` of their handles, and whether the pipeline writes to them.
    """

    variables: Mapping[int, bool]
    names: Mapping[int, str]
    shuffles: frozenset[int]

    @classmethod
    def of(cls, captured: Iterable[CapturedVariable], shuffles: frozenset[int]) -> _Sources:
        variables = {id(variable.handle): variable for variable in captured}
        return cls(
            {handle: variable.written for handle, variable in variables.items()},
            {handle: variable.name for handle, variable in variables.items()},
            shuffles,
        )

    def in_turn_with(self, other: _Sources) -> str | None:
        """Returns what both get at and one of them changes, or None."""
        common = self.variables.keys() & other.variables.keys()
        moved = [handle for handle in common if self.variables[handle] or other.variables[handle]]
        if moved:
            return f"the variable {self.names[moved[0]]}"
        return "a shuffle" if self.shuffles & other.shuffles else None
