"""The arguments of a trainer, as the training and the validation of its fits need them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import keras

from overlap_train._inspection.traces import Same, function_key
from overlap_train._keras import models as keras_models
from overlap_train._support.fit_arguments import Preprocess
from overlap_train._training.replicas import on_single_replica
from overlap_train._training.step import StepFunction
from overlap_train._training.strategy import Replicas
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.validation import EvaluatorPolicy, ValidationPolicy
from overlap_train.parallel.hosts import Hosts
from overlap_train.records import Span


class Recorder(Protocol):
    """Records the spans of all threads."""

    def add(self, span: Span) -> None:
        """Add a span; may be called from any thread."""


def function_name(function: Any) -> str:
    """Return how a message calls a function."""
    return str(getattr(function, "__qualname__", type(function).__name__))


@dataclass(frozen=True)
class TrainerSettings:
    """The arguments of a trainer; `stock` and `stock_validation` say that its steps are the model's own."""

    model: keras.Model
    train_step: StepFunction
    validation_step: StepFunction
    validation: ValidationPolicy
    execution: ExecutionPlan
    recorder: Recorder
    replicas: Replicas | None
    preprocess: Preprocess | None
    in_memory_bytes: int
    stock: bool
    stock_validation: bool

    @property
    def hosts(self) -> Hosts:
        """The hosts that train together."""
        return self.replicas.hosts if self.replicas is not None else Hosts()

    @property
    def shared(self) -> bool:
        """Whether several replicas share each batch."""
        return self.replicas is not None and self.replicas.count > 1

    @property
    def own_rows(self) -> bool:
        """Whether each of several hosts has its own training data."""
        return self.replicas is not None and self.replicas.own_rows

    @property
    def serves(self) -> bool:
        """Whether this host is the evaluator of others that train."""
        return self.replicas is not None and self.replicas.serves

    @property
    def evaluator(self) -> EvaluatorPolicy | None:
        """The policy of the evaluator that validates for this training, or None."""
        policy = self.validation.evaluator
        return policy if isinstance(policy, EvaluatorPolicy) else None

    @property
    def validates_alone(self) -> bool:
        """Whether one host trains and validates, so that the two compete for it."""
        return self.hosts.count == 1 and self.evaluator is None

    def beyond_keras(self, resume: Any = None, *, trains: bool = True) -> list[str]:
        """Return what is asked for that Keras cannot do and that decides what comes of a call."""
        asked = {
            "preprocess": self.preprocess is not None,
            "validation_step of the trainer": not self.stock_validation,
        }
        of_fit = {
            "resume": resume is not None,
            "functions": bool(self.validation.functions),
            "validations inside epochs": self.validation.every_steps is not None,
            "the evaluator": self.validation.evaluator is not None,
            "train_step of the trainer": not self.stock,
        }
        return [name for name, is_asked in (asked | of_fit if trains else asked).items() if is_asked]

    @property
    def stock_step(self) -> bool:
        """Whether a training step is Keras's own from the trainer to the model."""
        return self.stock and keras_models.is_stock_method(self.model.train_step)

    @property
    def train_identity(self) -> Hashable:
        """The key of the training step among traces: the model's own is the same for every trainer."""
        return self._identity(self.train_step, stock=self.stock)

    @property
    def validation_identity(self) -> Hashable:
        """The key of the validation step among traces."""
        return self._identity(self.validation_step, stock=self.stock_validation)

    @property
    def validation_function(self) -> StepFunction:
        """The validation step; the model's own where the trainer adds nothing: traces outlive the trainer."""
        stock: StepFunction = self.model.test_step
        return stock if self.stock_validation else self.validation_step

    @property
    def described_validation(self) -> dict[str, str]:
        """What is done with each batch of a validation, in words, for checkpoints and for other hosts."""
        step = "stock" if self.stock_validation else function_name(self.validation_step)
        return {"validation_step": step, "preprocess": "None" if self.preprocess is None else "a function"}

    def _identity(self, function: StepFunction, *, stock: bool) -> Hashable:
        strategy = None if self.replicas is None else Same(self.replicas.strategy)
        return strategy, "stock" if stock else function_key(function)

    @property
    def devices(self) -> Sequence[str]:
        """The devices that the validation's workers use in turn; none leaves the placement to TensorFlow."""
        return self.validation.devices or (self.replicas.spread if self.replicas is not None else ())

    @property
    def in_one_replica(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """The wrapper in which a validation's function is traced as in one replica. Holds no trainer."""
        return self.replicas.in_one_replica if self.replicas is not None else lambda function: function

    def around(self) -> Callable[[StepFunction], StepFunction]:
        """Return the wrapper that runs a step under a strategy of one replica, if any. Holds no trainer."""
        if self.replicas is None or self.shared:
            return lambda function: function
        return functools.partial(on_single_replica, self.replicas)

    def scope(self) -> AbstractContextManager[Any]:
        """Return the scope in which variables of the optimizer may be set."""
        return nullcontext() if self.replicas is None else self.replicas.scope()

    def holds_in_memory(self, size_bytes: int) -> bool:
        """Whether arrays of `size_bytes` are to be held as tensors."""
        loop = self.execution.loop
        return loop == "in_memory" or (loop != "iterator" and size_bytes <= self.in_memory_bytes)
