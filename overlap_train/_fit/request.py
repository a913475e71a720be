"""One call of `fit`, checked and understood."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.feed import Feed
from overlap_train._data.training_data import make_feed
from overlap_train._fit.callback_list import require_callbacks
from overlap_train._fit.settings import TrainerSettings
from overlap_train._keras import data as keras_data
from overlap_train._keras import evaluation as keras_evaluation
from overlap_train._keras import forks, routes
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._keras.replicas import looks_beforehand
from overlap_train._support import fit_arguments
from overlap_train._validation.named_sets import is_set, named_sets
from overlap_train.options.checkpoint import CheckpointPolicy, checkpoint_policy
from overlap_train.options.functions import EvaluationFunction, split_functions
from overlap_train.options.validation import ValidationSet

__all__ = ["FitArguments", "FitRequest", "make_request", "require_data", "require_heeded"]


@dataclass(frozen=True)
class FitArguments:
    """The arguments of `keras.Model.fit`, as they were given."""

    x: Any
    y: Any
    batch_size: int | None
    epochs: int
    verbose: fit_arguments.Verbosity
    callbacks: Any
    validation_split: float
    validation_data: Any
    shuffle: bool | str
    class_weight: dict[int, float] | None
    sample_weight: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: int | list[int]

    def checked(self, functions: Collection[Any] = ()) -> FitArguments:
        """Returns the arguments with numbers of Python; the data itself is not looked at.

        Args:
            functions: what validates besides the data.

        Raises:
            TypeError: for a value of the wrong type.
            ValueError: for a value out of range.
        """
        unchecked = {"x", "y", "sample_weight", "callbacks", "validation_data", "class_weight"}
        unchecked.add("validation_freq")
        given = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in unchecked}
        fit_arguments.check_class_weight(self.class_weight)
        require_callbacks(self.callbacks)
        numbers = fit_arguments.check_fit(**given)
        if functions or self.validation_data is not None or numbers["validation_split"]:
            fit_arguments.check_frequency(self.validation_freq)
        return dataclasses.replace(self, **numbers)


@dataclass(frozen=True)
class FitRequest:
    """What one `fit` is to do.

    Attributes:
        settings: what the trainer was given.
        feed: the training data.
        steps_per_epoch: as for `fit`.
        sets: the validation sets by name.
        functions: the evaluation functions by name.
        validation_freq: as for `fit`, for functions that do not say.
        callbacks: as for `fit`.
        initial_epoch: where the training begins if it is not resumed.
        epochs: where it ends.
        verbose: as for `fit`; 0 on hosts other than the chief.
        checkpoints: where, when and how many, or None.
        routed: whether the call was one of `keras.Model.fit`.
        elsewhere: how often an evaluator validates instead, like `validation_freq`; empty if none does.
    """

    settings: TrainerSettings
    feed: Feed
    steps_per_epoch: int | None
    sets: Mapping[str, ValidationSet]
    functions: Mapping[str, EvaluationFunction]
    validation_freq: int | list[int]
    callbacks: Any
    initial_epoch: int
    epochs: int
    verbose: fit_arguments.Verbosity
    checkpoints: CheckpointPolicy | None
    routed: bool = False
    elsewhere: Sequence[int | Sequence[int]] = ()

    @property
    def model(self) -> keras.Model:
        """The model to be trained."""
        return self.settings.model

    @property
    def judges_overlap(self) -> bool:
        """Whether running ahead has to pay."""
        return self.settings.validation.judges_overlap and self.settings.validates_alone

    @property
    def reads_when_due(self) -> bool:
        """Whether validation data that Python makes is read when its first validation is due, as by Keras.

        What all that depends on it has to be known before where it is part of checkpoints, where several
        hosts agree on it, and where validations are made inside epochs.
        """
        policy = self.settings.validation
        inside = policy.every_steps is not None or policy.every_seconds is not None
        return self.checkpoints is None and self.settings.replicas is None and not inside

    @property
    def streamed(self) -> bool:
        """Whether a pipeline prepares the batches while others are trained."""
        return not isinstance(self.feed, ArrayFeed)


def make_request(
    settings: TrainerSettings,
    given: FitArguments,
    resume: str | os.PathLike[str] | CheckpointPolicy | None,
) -> FitRequest:
    """Returns what a call of `fit` asks for. On the training thread.

    Args:
        settings: what the trainer was given.
        given: what `fit` was given.
        resume: likewise.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an argument out of range, empty or mismatched data, or what these replicas cannot do.
        RuntimeError: in a fork in which TensorFlow cannot run.
    """
    forks.require_runtime()
    given = given.checked(settings.validation.functions or ())
    checkpoints = checkpoint_policy(resume)
    model = settings.model
    keras_models.require_compiled(model)
    keras_training.require_stock_function(model)
    validation_data, functions = split_functions(given.validation_data, settings.validation.functions, is_set)
    data = given.x, given.y, given.sample_weight
    if given.validation_split and validation_data is None:
        data, validation_data = keras_data.split_validation(data, given.validation_split)
    sets = {} if validation_data is None else named_sets(validation_data, _default_set(given))
    if sets:
        require_heeded(settings)
    _check_replicas(settings, functions)
    require_data(model, sets.values())
    recognized = keras_data.recognize(
        *data,
        batch_size=given.batch_size,
        steps=(steps_per_epoch := keras_training.capped_steps(given.steps_per_epoch)),
        shuffle=given.shuffle,
        class_weight=given.class_weight,
        looked_at=looks_beforehand(model),
    )
    elsewhere: list[int | Sequence[int]] = []
    if settings.evaluator is not None and not settings.serves:
        elsewhere = [each.freq for each in sets.values()]
        elsewhere += [each.freq or given.validation_freq for each in functions.values()]
        elsewhere = elsewhere or [given.validation_freq]
        sets, functions = {}, {}
    return FitRequest(
        settings=settings,
        feed=make_feed(recognized, settings.holds_in_memory, settings.preprocess),
        steps_per_epoch=steps_per_epoch,
        sets=sets,
        functions=functions,
        validation_freq=given.validation_freq,
        callbacks=given.callbacks,
        initial_epoch=given.initial_epoch,
        epochs=keras_training.capped_epochs(given.epochs),
        verbose=given.verbose if settings.hosts.is_chief else 0,
        checkpoints=checkpoints,
        routed=routes.is_routed(model, "fit"),
        elsewhere=elsewhere,
    )


def require_heeded(settings: TrainerSettings, *, within_evaluate: bool = False) -> None:
    """Refuses what code of the model's own, or of a library's, that validates would not heed.

    Args:
        settings: what the trainer was given.
        within_evaluate: whether this is a call of `evaluate`, which the model's own has passed on.

    Raises:
        ValueError: there is such code, and something that changes the numbers was asked for.
    """
    own = keras_evaluation.validates_itself(settings.model)
    if within_evaluate and not keras_evaluation.has_own_test_function(settings.model):
        own = None
    asked = [] if settings.preprocess is None else ["preprocess"]
    if not settings.stock_validation:
        asked.append("validation_step of the trainer")
    if own is not None and asked:
        raise ValueError(
            f"{own}, so that {' and '.join(asked)} would be ignored in each validation; override "
            "test_step of the model instead, or leave that out"
        )


def require_data(model: keras.Model, sets: Iterable[ValidationSet]) -> None:
    """Refuses validation data of which it can be told before anything begins that it is of no use.

    Args:
        model: that evaluates it; if by code of its own, any data is taken.
        sets: the validation sets.

    Raises:
        ValueError: for data of no rows or batches, or of several replicas.
    """
    if keras_evaluation.validates_itself(model) is not None:
        return
    for each in sets:
        keras_data.require_usable(*keras.utils.unpack_x_y_sample_weight(each.data), role="validation")


def _default_set(given: FitArguments) -> ValidationSet:
    """Returns how validation data is validated that does not say it itself."""
    return ValidationSet(
        data=None,
        freq=given.validation_freq,
        steps=given.validation_steps,
        batch_size=given.validation_batch_size or given.batch_size,
    )


def _check_replicas(settings: TrainerSettings, functions: Mapping[str, EvaluationFunction]) -> None:
    if settings.replicas is None:
        return
    settings.replicas.check_model(settings.model)
    if settings.serves and settings.evaluator is None:
        raise ValueError(
            "this host is its cluster's evaluator; pass ValidationPolicy(evaluator=directory) on all hosts"
        )
    if functions and settings.hosts.count > 1 and settings.evaluator is None:
        raise ValueError("evaluation functions are for one host; leave them out on several")
