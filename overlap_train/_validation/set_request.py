"""What is asked of the validation of a `fit` or an `evaluate`, and its sets once they are prepared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train._data.batches import Preprocess
from overlap_train._data.validation_data import Batches
from overlap_train._support.reasons import Reason
from overlap_train._validation.given_sets import GivenSets
from overlap_train._validation.validation_step import ValidationStep
from overlap_train.options.validation import ValidationPolicy, ValidationSet
from overlap_train.parallel.hosts import Hosts

__all__ = ["PreparedSet", "SetRequest"]


@dataclass(frozen=True)
class SetRequest:
    """What is asked of the validation, for all sets."""

    model: keras.Model
    given: GivenSets
    function: Callable[[Any], Mapping[str, Any]]
    identity: Hashable
    policy: ValidationPolicy
    listened: bool = False  # whether a callback is told of the batches of a validation
    acts: str | None = None  # the name of a callback that may do anything between these batches, or None
    # the name of one that may set the model before them, when they have been drawn; or None
    sets_before: str | None = None
    stock: bool = True
    # whether this is a call of `evaluate`, which has reached the model's own already
    within_evaluate: bool = False
    once: bool = False  # whether there is one validation, beside which nothing is trained
    preprocess: Preprocess | None = None
    # returns how many rows of nested arrays may be evaluated as one batch; None leaves batches alone
    most_rows: Callable[[Any], int] | None = None
    # whether the training may be given the state that a validation will leave in counters
    counts_ahead: bool = False
    # whether it is noticed when a plain value is set that a metric computes with
    holds_constants: bool = False
    devices: Sequence[str] = ()  # that the workers take in turn; none leaves them where TensorFlow puts them
    hosts: Hosts | None = None
    within: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    shared: bool = False  # whether several replicas share each batch, of which the workers compute with one


@dataclass(frozen=True)
class PreparedSet:
    """A validation set whose step has been traced, before the variables of the training are known."""

    name: str
    chosen: ValidationSet
    batches: Batches | None  # its data; None where the model's own `evaluate` takes it, or it waits
    step: ValidationStep | None  # the traced step; None where nothing is traced
    live: Reason | None  # why it has to be validated live, or None
    waits: bool = False  # whether its data is still to be read

    @property
    def counting(self) -> Reason | None:
        """Why it changes the model, if it has counters; None if it has none."""
        return self.step.counting if self.step is not None and self.step.counters else None
