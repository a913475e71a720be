"""One call of `fit`, checked and understood."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.grounds import require_stock_list
from overlap_train._checkpoint.fingerprints import describe_sets
from overlap_train._data.array_feed import ArrayFeed, make_feed
from overlap_train._data.feed import Feed
from overlap_train._keras import callers, forks
from overlap_train._keras import data as keras_data
from overlap_train._keras import models as keras_models
from overlap_train._keras import training as keras_training
from overlap_train._support import fit_arguments
from overlap_train._training.settings import TrainerSettings, function_name
from overlap_train._validation.validation_sources import is_set, named_sets
from overlap_train.options.checkpoint import CheckpointPolicy, checkpoint_policy
from overlap_train.options.functions import EvaluationFunction, split_functions
from overlap_train.options.validation import ValidationSet


@dataclass(frozen=True)
class FitRequest:
    """What one `fit` is to do."""

    settings: TrainerSettings
    feed: Feed
    steps_per_epoch: int | None
    sets: Mapping[str, ValidationSet]
    functions: Mapping[str, EvaluationFunction]
    validation_freq: int | list[int]
    callbacks: Any
    initial_epoch: int
    epochs: int
    verbose: fit_arguments.Verbosity  # 0 on hosts other than the chief
    checkpoints: CheckpointPolicy | None
    routed: bool = False  # whether `keras.Model.fit` was called
    elsewhere: Sequence[int | Sequence[int]] = ()  # like `validation_freq`, if an evaluator validates

    @property
    def model(self) -> keras.Model:
        """The model to be trained."""
        return self.settings.model

    @property
    def judges_overlap(self) -> bool:
        """Whether the training waits for its validation where it leaves hardly any core idle."""
        policy = self.settings.validation
        return policy.overlap == "auto" and policy.backlog == "block" and self.settings.validates_alone

    @property
    def reads_when_due(self) -> bool:
        """Whether validation data that Python makes is read when its first validation is due, as by Keras.

        It is read at once where checkpoints describe it, where several hosts agree on it, and where
        validations are made inside epochs.
        """
        return self.checkpoints is None and self.settings.replicas is None and not self.validates_inside

    @property
    def validates_inside(self) -> bool:
        """Whether validations are made inside epochs."""
        return self.settings.validation.every_steps is not None

    @property
    def streamed(self) -> bool:
        """Whether a pipeline prepares the batches while others are trained."""
        return not isinstance(self.feed, ArrayFeed)

    @property
    def described_validation(self) -> dict[str, str]:
        """What a history's `val_` values come from, in words, for checkpoints and for other hosts."""
        functions = {
            f"evaluation function {name!r}": f"{function_name(each.function)}, freq {each.freq}"
            for name, each in self.functions.items()
        }
        return {**describe_sets(self.sets), **self.settings.described_validation, **functions}

    @property
    def counts_on_first(self) -> bool:
        """Whether the first of several replicas counts all rows of a step in the metrics."""
        return self.settings.shared and self.settings.stock_step


def make_request(
    settings: TrainerSettings,
    x: Any = None,
    y: Any = None,
    *,
    sample_weight: Any = None,
    callbacks: Any = None,
    validation_data: Any = None,
    class_weight: dict[int, float] | None = None,
    validation_freq: int | list[int] = 1,
    resume: str | os.PathLike[str] | CheckpointPolicy | None = None,
    **numbers_of_fit: Any,
) -> FitRequest:
    """Checks the arguments of a call of `Trainer.fit` and returns what it asks for.

    The other arguments are those of `FitNumbers`.
    """
    forks.require_runtime()
    model = settings.model
    require_stock_list(callbacks)
    numbers = fit_arguments.FitNumbers(**numbers_of_fit)
    if settings.validation.functions or validation_data is not None or numbers.validation_split:
        fit_arguments.check_frequency(validation_freq)
    checkpoints = None if resume is None else checkpoint_policy(resume)
    keras_models.require_compiled(model)
    keras_training.require_stock_function(model)
    functions: Mapping[str, EvaluationFunction] = {}
    if settings.validation.functions or isinstance(validation_data, (dict, EvaluationFunction)):
        validation_data, functions = split_functions(validation_data, settings.validation.functions, is_set)
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
    sets = named_sets(validation_data, default)
    _require_possible(settings, sets)
    elsewhere: list[int | Sequence[int]] = []
    if settings.evaluator is not None and not settings.serves:
        frequencies = [*(s.freq for s in sets.values()), *(f.freq for f in functions.values())] or [None]
        elsewhere = [validation_freq if freq is None else freq for freq in frequencies]
        sets, functions = {}, {}
    numbers = replace(
        numbers,
        epochs=keras_training.capped_epochs(numbers.epochs),
        steps_per_epoch=keras_training.capped_steps(numbers.steps_per_epoch),
    )
    return FitRequest(
        settings=settings,
        feed=_feed(settings, (x, y, sample_weight), numbers, class_weight),
        steps_per_epoch=numbers.steps_per_epoch,
        sets=sets,
        functions=functions,
        validation_freq=validation_freq,
        callbacks=callbacks,
        initial_epoch=numbers.initial_epoch,
        epochs=numbers.epochs,
        verbose=numbers.verbose if settings.hosts.is_chief else 0,
        checkpoints=checkpoints,
        routed=callers.is_routed(model, "fit"),
        elsewhere=elsewhere,
    )


def _feed(
    settings: TrainerSettings,
    data: tuple[Any, Any, Any],
    numbers: fit_arguments.FitNumbers,
    class_weight: dict[int, float] | None,
) -> Feed:
    recognized = keras_data.recognize(
        *data,
        batch_size=numbers.batch_size,
        steps=numbers.steps_per_epoch,
        shuffle=numbers.shuffle,
        class_weight=class_weight,
        looked_at=keras_models.looks_beforehand(settings.model),
    )
    if settings.own_rows and isinstance(recognized, keras_data.Arrays) and recognized.dense:
        # A dataset, so that the batches of all hosts are drawn in one way.
        rows = tf.data.Dataset.from_tensor_slices(recognized.inputs)
        rows = rows.shuffle(recognized.num_samples) if recognized.shuffle else rows
        batches = rows.batch(recognized.batch_size)
        recognized = keras_data.recognize(batches, looked_at=keras_models.looks_beforehand(settings.model))
    return make_feed(recognized, settings.holds_in_memory, settings.preprocess)


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
    """Refuses options that a validation by code of the model's own, or of a library, would ignore."""
    code = keras_training.validates_itself(settings.model)
    if within_evaluate and not keras_training.has_own_test_function(settings.model):
        code = None
    options = [] if settings.preprocess is None else ["preprocess"]
    if not settings.stock_validation:
        options.append("validation_step of the trainer")
    if code is not None and options:
        raise ValueError(
            f"{code}, so that {' and '.join(options)} would be ignored in each validation; override "
            "test_step of the model instead, or leave that out"
        )


def require_data(model: keras.Model, sets: Iterable[ValidationSet]) -> None:
    """Refuses validation data that no validation can use, as far as that shows before anything begins."""
    if keras_training.validates_itself(model) is not None:  # by code that may take any data
        return
    for each in sets:
        keras_data.require_usable(*keras.utils.unpack_x_y_sample_weight(each.data), role="validation")


def make_callback_list(
    callbacks: Any, *, add_history: bool = True, **options: Any
) -> keras.callbacks.CallbackList:
    """Returns the user's callbacks as Keras would call them; a `CallbackList` as it is."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(callbacks, add_history=add_history, **options)
