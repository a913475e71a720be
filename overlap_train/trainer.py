"""`Trainer`: `keras.Model.fit` with the validation overlapped. What a `fit` consists of is in `_fit/`."""

from __future__ import annotations

import functools
import html
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import tensorflow as tf
from numpy.typing import ArrayLike

from overlap_train._fit.course import FitOutcome
from overlap_train._keras import callers, tracebacks
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._support import arguments, fit_arguments, imports
from overlap_train._training.strategy import find_strategy
from overlap_train.monitoring.recorder import EpochAccounts, SpanRecorder
from overlap_train.options.checkpoint import CheckpointPolicy, checkpoint_policy
from overlap_train.options.execution import ExecutionPlan, with_own_operations
from overlap_train.options.validation import ValidationPolicy
from overlap_train.records import Explanation, FitAccount, StepValidation, Verification

if TYPE_CHECKING:
    from overlap_train._training.settings import TrainerSettings

__all__ = ["Trainer"]

__dir__ = imports.public_names(__name__)

_IN_MEMORY_BYTES = 4 << 30

_Batches: TypeAlias = tf.data.Dataset | keras.utils.PyDataset | Iterator[Any]
Data: TypeAlias = ArrayLike | _Batches | Sequence["Data"] | Mapping[str, "Data"]
"""Training or validation data: arrays, also in a list or a dict, a dataset, or a generator of batches."""

_Callback: TypeAlias = keras.callbacks.Callback
Callbacks: TypeAlias = _Callback | keras.callbacks.CallbackList | Sequence[_Callback]


def _of_model(name: str) -> property:
    return property(lambda trainer: getattr(trainer.model, name), doc=f"The model's `{name}`.")


class Trainer:
    """Train a compiled Keras model, and validate each epoch while the next one is trained.

    The calling thread trains, in compiled calls of many steps, and runs all callbacks. At an epoch's end it
    takes a snapshot of the weights. A pool of worker threads evaluates the snapshot, each thread a part of
    the validation set, and gives the numbers of `keras.Model.evaluate`. Override `train_step` and
    `validation_step` to change what a step does.

    Attributes:
        model: the wrapped model.
        replicas: the replicas that share each batch, or None without a strategy.
        validation: how the validation runs.
        execution: how the steps are executed.
        recorder: keeps the spans of all threads, for a timeline.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        validation: ValidationPolicy | None = None,
        execution: ExecutionPlan | None = None,
        strategy: tf.distribute.Strategy | None = None,
        recorder: SpanRecorder | None = None,
        preprocess: fit_arguments.Preprocess | None = None,
        in_memory_bytes: int = _IN_MEMORY_BYTES,
    ) -> None:
        """Wrap a model.

        Args:
            model: a Keras model, built or not. It has to be compiled before `fit` or `evaluate` is called.
            validation: how the validation runs; see `ValidationPolicy`.
            execution: how the steps are executed; see `ExecutionPlan`.
            strategy: the `tf.distribute` strategy in whose scope the model was made and compiled; its
                replicas share each batch. None takes it from the model. With the strategy that
                `join_cluster` returns on an evaluator, `fit` validates for the hosts that train.
            recorder: keeps the spans of all threads for a timeline; None makes a new one.
            preprocess: prepares each batch of training and validation data, like a function for
                `Dataset.map` over batches: `preprocess(x, y)` returns `(x, y)`. It must be a pure function
                of TensorFlow operations. For arrays it is compiled into the loop, so the arrays keep their
                own dtype in memory.
            in_memory_bytes: training arrays up to this size are held as tensors for the compiled loop;
                larger ones go through `tf.data`. Arrays on read-only memory that `zero_copy.explain` lets be
                shared, such as those of `numpy.load(path, mmap_mode="r")`, are not copied and do not count.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `in_memory_bytes` is negative, or the strategy is not that of the model.
            RuntimeError: Keras runs on another backend than TensorFlow.
        """
        imports.require_tensorflow()
        keras_models.require_model(model)
        found = strategy is not None or keras_models.strategy_of(model) or tf.distribute.has_strategy()
        self.replicas = find_strategy(model, strategy) if found else None
        arguments.require_instance("validation", validation, ValidationPolicy)
        arguments.require_instance("execution", execution, ExecutionPlan)
        arguments.require_instance("recorder", recorder, SpanRecorder)
        if preprocess is not None and not callable(preprocess):
            raise TypeError(
                f"preprocess must be a function of a batch or None; got {arguments.short_repr(preprocess)}"
            )
        self.model = model
        self._preprocess = preprocess
        self.validation = validation if validation is not None else ValidationPolicy()
        self.execution = execution if execution is not None else ExecutionPlan()
        self.recorder = recorder if recorder is not None else SpanRecorder()
        self._outcome = FitOutcome(ended=None)
        self._in_memory_bytes = arguments.require_count("in_memory_bytes", in_memory_bytes, minimum=0)

    @property
    def accounts(self) -> EpochAccounts:
        """The accounts of the last `fit`: for each delivered epoch, where its time went."""
        return self._outcome.accounts

    @property
    def account(self) -> FitAccount | None:
        """Where the time of the last `fit` went, and what was gained; None before the first."""
        return self._outcome.account

    @property
    def step_validations(self) -> list[StepValidation]:
        """The validations inside epochs of the last `fit`; see `ValidationPolicy.every_steps`."""
        return self._outcome.step_validations

    @property
    def messages(self) -> list[str]:
        """The messages of the last `fit`, whatever its `verbose`.

        They name the plan, rollbacks, and why it validates in step.
        """
        return self._outcome.messages

    @property
    def ended(self) -> str | None:
        """How the last `fit` ended; None before the first.

        "completed", "stopped" by a callback, "interrupted by" a signal, or "failed".
        """
        return self._outcome.ended

    predict = _of_model("predict")
    save = _of_model("save")
    summary = _of_model("summary")
    get_weights = _of_model("get_weights")

    def __repr__(self) -> str:
        did = "not trained yet" if self.ended is None else f"{self.ended}, {len(self.accounts)} epochs"
        gained = f"; {self.account}" if self.account is not None else ""
        return f"<{type(self).__name__} of {self.model.name!r}: {did}{gained}>"

    def _repr_html_(self) -> str:
        table = self.accounts._repr_html_() if self.accounts else ""
        return f"<p>{html.escape(repr(self))}</p>{table}"

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """Make one training step: update the model's variables.

        Override it to change the step. It is called while it is traced, on the thread that called `fit`. The
        default calls the model's own `train_step`.

        Args:
            batch: `x`, `(x, y)` or `(x, y, sample_weight)`, nested as the data is, with the rows along
                axis 0.

        Returns:
            The logs: scalar tensors by name.
        """
        return self.model.train_step(batch)

    def validation_step(self, batch: Any) -> Mapping[str, Any]:
        """Make one validation step: update the metrics.

        Override it to change the step. It is called while it is traced, on the thread that called `fit`. The
        workers run the trace with a snapshot's values in place of the model's variables. The default calls
        the model's own `test_step`.

        Args:
            batch: `x`, `(x, y)` or `(x, y, sample_weight)`, nested as the data is, with the rows along
                axis 0.

        Returns:
            The logs: scalar tensors by name.
        """
        return self.model.test_step(batch)

    @tracebacks.filtered
    @callers.dispatches_to_model("fit")
    def fit(
        self,
        x: Data | None = None,
        y: Data | None = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: fit_arguments.Verbosity = "auto",
        callbacks: Callbacks | None = None,
        validation_split: float = 0.0,
        validation_data: Data | tuple[Data, ...] | Mapping[str, Any] | None = None,
        shuffle: bool | str = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: ArrayLike | Mapping[str, ArrayLike] | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | list[int] = 1,
        *,
        resume: str | os.PathLike[str] | CheckpointPolicy | None = None,
    ) -> keras.callbacks.History:
        """Train the model. The arguments are those of `keras.Model.fit`, with the same meaning, and `resume`.

        `resume` is a directory, or a `CheckpointPolicy`, for checkpoints of this training. If it holds a
        checkpoint, the training continues from there, to the result of an uninterrupted run.

        `validation_data` may also be a dict of several sets by name, such as
        `{"clean": (x, y), "noisy": ValidationSet(data=dataset, freq=5)}`. Their metrics are then called
        `val_clean_loss` and so on. A value may be an `EvaluationFunction`, which is called with a model of
        each epoch's weights, like those of `ValidationPolicy(functions=...)`.

        Returns:
            A `keras.callbacks.History` with each value under the epoch to which it belongs; its attributes
            `ended`, `accounts` and `account` are those of the trainer. After a first Ctrl-C or SIGTERM it
            holds the epochs that were delivered.

        Raises:
            ValueError: an argument is out of range, data is empty or mismatched, or the model is not
                compiled; raised before anything starts.
            TypeError: an argument has the wrong type; raised before anything starts.
            OverlapError: the training would wait for its validations, with `overlap="require"`.
            ValidationWorkerError: a worker failed; its `__cause__` is what the worker raised.
            ValidationTimeoutError: a validation took longer than `ValidationPolicy.timeout_s`.
            ClusterError: a training on several hosts, or its evaluator, cannot start or continue.
            CheckpointError: a checkpoint cannot be written, is damaged, or belongs to another training.
            KeyboardInterrupt: a second signal came before the fit had ended after the first.
            RuntimeError: this process was forked from one that had used TensorFlow.
        """
        outcome = FitOutcome()  # whose clock begins
        from overlap_train._fit.request import make_request
        from overlap_train._fit.run import run_fit

        with fit_arguments.Refusing(self):
            request = make_request(
                self._settings(),
                x,
                y,
                sample_weight=sample_weight,
                batch_size=batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_split=validation_split,
                validation_data=validation_data,
                shuffle=shuffle,
                class_weight=class_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
                resume=resume,
            )
        self._outcome = outcome
        run_fit(request, outcome)
        return self.model.history

    @tracebacks.filtered
    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Return what `fit` would do with the same arguments, without training.

        Everything is traced as for `fit`, and the traces are dropped. No hook of a callback is called and no
        checkpoint is read. Weights, metrics and the seeds of pipelines do not change. A model that is not
        built yet is built. A generator loses the batch from which Keras learns its shapes.

        Args:
            args: the positional arguments of `fit`.
            kwargs: the keyword arguments of `fit`.

        Returns:
            Whether it would overlap, why not, the plan, and the memory that it would take.

        Raises:
            ValueError: `fit` would raise it before it starts.
            TypeError: `fit` would raise it before it starts.
        """
        from overlap_train._fit.explaining import explain_fit
        from overlap_train._fit.request import make_request

        arguments = self._fit_arguments("explain", args, kwargs)
        return explain_fit(make_request(self._settings(), **arguments))

    @tracebacks.filtered
    def verify(self, *args: Any, **kwargs: Any) -> Verification:
        """Fit by Keras and overlapped with the same arguments, and return whether the results are the same.

        Both fits begin with the model, the shuffles of datasets and the seeds of Python, NumPy and TensorFlow
        in the same state. Compared are the logs of each epoch, the calls of callbacks, their plain
        attributes, the weights and the optimizer. Where the two differ, Keras runs once more: what differs
        between two runs of Keras is no difference. Where a difference grew from rounding, the overlapped fit
        runs once more with Keras's own operations: if these make none, it is rounding. Afterwards the model,
        the callbacks, the data and all else that these reach are as they were. Files that callbacks write are
        written by each run; `overlap-train verify` compares these too, in processes of their own.

        Args:
            args: the positional arguments of `fit`.
            kwargs: the keyword arguments of `fit`.

        Returns:
            The verdict, and where the two differ.

        Raises:
            ValueError: `fit` would raise it before it starts; the data gives its batches or orders once only;
                or Keras has nothing like what the trainer is to do.
            TypeError: `fit` would raise it before it starts, or something cannot be put back.
            KeyboardInterrupt: a signal came.
        """
        from overlap_train._fit.verifying import verify_fit

        arguments, before = self._fit_arguments("verify", args, kwargs), (self._outcome, self.recorder)
        plan = self.execution

        def fit_with_own(**arguments: Any) -> keras.callbacks.History:
            self.execution = with_own_operations(plan, self.model)
            return self.fit(**arguments)

        try:
            self.recorder = SpanRecorder(0)  # the timeline is of fits
            return verify_fit(self._settings(), arguments, self.fit, fit_with_own, lambda: self.messages)
        finally:
            self._outcome, self.recorder, self.execution = *before, plan

    def _fit_arguments(self, name: str, args: Any, kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a call of `fit` by their names, for a method that takes the same."""
        try:
            bound = inspect.signature(Trainer.fit).bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name} takes the arguments of fit: {error}") from None
        bound.apply_defaults()
        del bound.arguments["self"]
        return bound.arguments

    def _evaluate_by_model(self, *args: Any, **kwargs: Any) -> Any:
        """Call an `evaluate` of the model's own; its call of Keras's comes back here."""
        from overlap_train._fit.own_methods import OwnMethod

        return OwnMethod(self._settings(), "evaluate").call(self.evaluate, *args, **kwargs)

    def _fit_by_model(self, *args: Any, resume: Any = None, **kwargs: Any) -> keras.callbacks.History:
        """Call a `fit` of the model's own, or of a library; its call of Keras's comes back here."""
        from overlap_train._fit.own_methods import OwnMethod

        if resume is not None:
            checkpoint_policy(resume)  # which refuses what is no directory
        method = OwnMethod(self._settings(), "fit", resume)
        history = method.call(functools.partial(self.fit, resume=resume), *args, **kwargs)
        if not method.used:
            self._outcome = FitOutcome(ended="completed")
            self.messages.append(
                f"{method.name} has trained by itself: it did not call keras.Model.fit, so nothing overlapped"
            )
        elif method.by_library:
            self.messages.append(f"{method.name} was called around this training")
        return history

    @tracebacks.filtered
    @callers.dispatches_to_model("evaluate")
    def evaluate(
        self,
        x: Data | None = None,
        y: Data | None = None,
        batch_size: int | None = None,
        verbose: fit_arguments.Verbosity = "auto",
        sample_weight: ArrayLike | Mapping[str, ArrayLike] | None = None,
        steps: int | None = None,
        callbacks: Callbacks | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Evaluate the model with its current weights, on the same workers as `fit`.

        The arguments are those of `keras.Model.evaluate`. With `verbose` it prints Keras's line of the result
        at the end, without a progress bar.

        Returns:
            A dict of floats by metric name if `return_dict`, otherwise a list in Keras's order, or the
            loss alone if there is no other metric.

        Raises:
            ValueError: an argument is out of range, the data is empty, or the model is not compiled.
            TypeError: an argument has the wrong type.
            RuntimeError: this process was forked from one that had used TensorFlow.
        """
        from overlap_train._fit.evaluating import make_evaluation_set, run_evaluate

        with fit_arguments.Refusing(self):
            data = make_evaluation_set(
                self._settings(),
                (x, y, sample_weight),
                batch_size=batch_size,
                steps=steps,
                verbose=verbose,
                callbacks=callbacks,
            )
        logs = run_evaluate(self._settings(), data, callbacks, verbose)
        return logs if return_dict else keras_metrics.flatten_logs(self.model, logs)

    def _settings(self) -> TrainerSettings:
        from overlap_train._training.settings import TrainerSettings

        return TrainerSettings(
            self.model,
            self.train_step,
            self.validation_step,
            self.validation,
            self.execution,
            self.recorder,
            replicas=self.replicas,
            preprocess=self._preprocess,
            in_memory_bytes=self._in_memory_bytes,
            stock=getattr(self.train_step, "__func__", None) is Trainer.train_step,
            stock_validation=getattr(self.validation_step, "__func__", None) is Trainer.validation_step,
        )
