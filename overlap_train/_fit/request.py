"""One call of `fit`, checked and understood."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.feed import Feed
from overlap_train._data.iterator_feed import make_feed
from overlap_train._fit.callback_list import require_callbacks
from overlap_train._keras import data as keras_data
from overlap_train._keras import models as keras_models
from overlap_train._keras import routes, threads
from overlap_train._keras import training as keras_training
from overlap_train._keras.replicas import looks_beforehand
from overlap_train._support import fit_arguments
from overlap_train._training.settings import TrainerSettings
from overlap_train._validation.validation_sources import is_set, named_sets
from overlap_train.options.checkpoint import CheckpointPolicy, checkpoint_policy
from overlap_train.options.functions import EvaluationFunction, split_functions
from overlap_train.options.validation import ValidationSet

__all__ = ["FitRequest", "make_request", "require_data", "require_heeded"]


@dataclass(frozen=True)
class FitRequest:
    """What one `fit` is to do.

    `verbose` is 0 on hosts other than the chief; `routed` says that `keras.Model.fit` was called. `elsewhere`
    is how often an evaluator validates instead, like `validation_freq`; empty if none does.
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
        inside = policy.every_steps is not None
        return self.checkpoints is None and self.settings.replicas is None and not inside

    @property
    def streamed(self) -> bool:
        """Whether a pipeline prepares the batches while others are trained."""
        return not isinstance(self.feed, ArrayFeed)


def make_request(
    settings: TrainerSettings,
    x: Any = None,
    y: Any = None,
    *,
    sample_weight: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: fit_arguments.Verbosity = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: dict[int, float] | None = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    resume: str | os.PathLike[str] | CheckpointPolicy | None = None,
) -> FitRequest:
    """Checks the arguments of a call of `Trainer.fit` and returns what it asks for. On the training thread.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an argument out of range, empty or mismatched data, or what these replicas cannot do.
        RuntimeError: in a fork in which TensorFlow cannot run.
    """
    threads.require_runtime()
    model, policy = settings.model, settings.validation
    fit_arguments.check_class_weight(class_weight)
    require_callbacks(callbacks)
    numbers = fit_arguments.check_fit(
        epochs=epochs,
        initial_epoch=initial_epoch,
        batch_size=batch_size,
        validation_batch_size=validation_batch_size,
        steps_per_epoch=steps_per_epoch,
        validation_steps=validation_steps,
        validation_split=validation_split,
        verbose=verbose,
        shuffle=shuffle,
    )
    if policy.functions or validation_data is not None or numbers.validation_split:
        fit_arguments.check_frequency(validation_freq)
    checkpoints = checkpoint_policy(resume)
    keras_models.require_compiled(model)
    keras_training.require_stock_function(model)
    validation_data, functions = split_functions(validation_data, policy.functions, is_set)
    if numbers.validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = keras_data.split_validation(
            (x, y, sample_weight), numbers.validation_split
        )
    default = ValidationSet(
        data=None,
        freq=validation_freq,
        steps=numbers.validation_steps,
        batch_size=numbers.validation_batch_size or numbers.batch_size,
    )
    sets = {} if validation_data is None else named_sets(validation_data, default)
    _require_possible(settings, sets)
    elsewhere: list[int | Sequence[int]] = []
    if settings.evaluator is not None and not settings.serves:
        elsewhere = [each.freq for each in sets.values()]
        elsewhere += [each.freq or validation_freq for each in functions.values()]
        elsewhere = elsewhere or [validation_freq]
        sets, functions = {}, {}
    return FitRequest(
        settings=settings,
        feed=_feed(settings, x, y, sample_weight, numbers, class_weight),
        steps_per_epoch=keras_training.capped_steps(numbers.steps_per_epoch),
        sets=sets,
        functions=functions,
        validation_freq=validation_freq,
        callbacks=callbacks,
        initial_epoch=numbers.initial_epoch,
        epochs=keras_training.capped_epochs(numbers.epochs),
        verbose=numbers.verbose if settings.hosts.is_chief else 0,
        checkpoints=checkpoints,
        routed=routes.is_routed(model, "fit"),
        elsewhere=elsewhere,
    )


def _feed(
    settings: TrainerSettings,
    x: Any,
    y: Any,
    sample_weight: Any,
    numbers: fit_arguments.FitNumbers,
    class_weight: dict[int, float] | None,
) -> Feed:
    recognized = keras_data.recognize(
        x,
        y,
        sample_weight,
        batch_size=numbers.batch_size,
        steps=keras_training.capped_steps(numbers.steps_per_epoch),
        shuffle=numbers.shuffle,
        class_weight=class_weight,
        looked_at=looks_beforehand(settings.model),
    )
    own_rows = settings.replicas is not None and settings.replicas.own_rows
    if own_rows and isinstance(recognized, keras_data.Arrays) and recognized.dense:
        # The batches of all hosts are drawn in one way.
        recognized = keras_data.recognize(_rows_of(recognized), looked_at=looks_beforehand(settings.model))
    return make_feed(recognized, settings.holds_in_memory, settings.preprocess)


def _rows_of(arrays: keras_data.Arrays) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices(arrays.inputs)
    shuffled = rows.shuffle(arrays.num_samples) if arrays.shuffle else rows
    return shuffled.batch(arrays.batch_size)


def _require_possible(settings: TrainerSettings, sets: Mapping[str, ValidationSet]) -> None:
    """Refuses validations that this trainer, or these replicas, cannot make."""
    if sets:
        require_heeded(settings)
    if settings.replicas is not None:
        settings.replicas.check_model(settings.model)
        if settings.serves and settings.evaluator is None:
            raise ValueError(
                "this host is its cluster's evaluator; pass ValidationPolicy(evaluator=directory) on all "
                "hosts"
            )
    require_data(settings.model, sets.values())


def require_heeded(settings: TrainerSettings, *, within_evaluate: bool = False) -> None:
    """Refuses what code of the model's own, or of a library's, that validates would not heed.

    Within an `evaluate` the model's own has passed the call on.
    """
    own = keras_training.validates_itself(settings.model)
    if within_evaluate and not keras_training.has_own_test_function(settings.model):
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

    A model that evaluates by code of its own takes any data.
    """
    if keras_training.validates_itself(model) is not None:
        return
    for each in sets:
        keras_data.require_usable(*keras.utils.unpack_x_y_sample_weight(each.data), role="validation")
