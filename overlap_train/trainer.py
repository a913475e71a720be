"""`Trainer`: `keras.Model.fit` with the validation overlapped. `assembly.py` wires, `session.py` runs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train._callbacks.delivery import evaluate_now
from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.cursor import Cursor
from overlap_train._data.feed import Feed
from overlap_train._data.preprocessing import Preprocess
from overlap_train._data.training_data import make_feed
from overlap_train._fit.assembly import Setup, assemble_fit, make_callback_list, make_suite, serve_fit
from overlap_train._fit.first_hooks import open_fit
from overlap_train._fit.parts import Parts, Schedule
from overlap_train._fit.session import FitSession
from overlap_train._keras import data as keras_data
from overlap_train._keras import methods as keras_methods
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._keras import routes
from overlap_train._keras import training as keras_training
from overlap_train._support import arguments, fit_arguments, numbers
from overlap_train._training.replicas.strategy import find_strategy
from overlap_train._validation.sets import is_set, named_sets
from overlap_train.errors import HostLostError
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.monitoring.table import format_epoch_table
from overlap_train.options.checkpoint import CheckpointPolicy, checkpoint_policy
from overlap_train.options.execution import ExecutionPlan
from overlap_train.options.functions import EvaluationFunction, split_functions
from overlap_train.options.validation import ValidationPolicy, ValidationSet
from overlap_train.parallel.hosts import Alone
from overlap_train.records import EpochAccount, StepValidation

__all__ = ["Trainer"]


class Trainer:
    """Trains a compiled Keras model, validating each epoch while the next one is trained.

    The calling thread trains, in compiled calls of many steps, and runs all callbacks. At an epoch's end it
    takes a snapshot of the weights; a pool of worker threads evaluates it, each on its part of the
    validation set, with the numbers that `keras.Model.evaluate` would give. Override `train_step` and
    `validation_step` to change what a step does.

    Attributes:
        model: the model.
        replicas: the replicas that share each batch, or None without a strategy.
        validation: how the validation runs.
        recorder: what each thread did when.
        accounts: where the time of each epoch of the last `fit` went.
        step_validations: the results of validations inside epochs (`ValidationPolicy.every_steps`).
        messages: what the last `fit` had to say beside its progress, whatever its `verbose`: the plan,
            rollbacks, why it validates in step.
        ended: how the last `fit` ended: "completed", "stopped" by a callback, "interrupted by" a signal, or
            "failed"; None before the first.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        validation: ValidationPolicy | None = None,
        execution: ExecutionPlan | None = None,
        strategy: tf.distribute.Strategy | None = None,
        recorder: SpanRecorder | None = None,
        preprocess: Preprocess | None = None,
        in_memory_bytes: int = 4 << 30,
    ) -> None:
        """Wraps a model.

        Args:
            model: a Keras model; compiled before `fit` or `evaluate` is called, built or not.
            validation: how the validation runs; see `ValidationPolicy`.
            execution: how the steps are executed; see `ExecutionPlan`.
            strategy: the `tf.distribute` strategy in whose scope the model was made and compiled; each batch
                is then shared by its replicas. None finds it out from the model. Under what `join_cluster`
                returns on an evaluator, `fit` validates for the hosts that train.
            recorder: keeps the spans of all threads for a timeline; a new one if None.
            preprocess: prepares each batch of training and validation data, as a function for
                `Dataset.map` over batches does: `preprocess(x, y)` returns `(x, y)`. Over arrays it is
                compiled into the loop, so they stay as small as they are. A pure function of TensorFlow's.
            in_memory_bytes: training arrays up to this size are held as tensors for the compiled loop;
                larger ones go through `tf.data`. Read-only arrays that `zero_copy.explain` finds fit to be
                shared, as `numpy.load(path, mmap_mode="r")` returns them, are not copied and do not count.

        Raises:
            TypeError: if an argument has the wrong type.
            ValueError: if `in_memory_bytes` is negative, or the strategy is of no use for this model.
        """
        keras_models.require_model(model)
        self.replicas = find_strategy(model, strategy)
        arguments.require_instance("validation", validation, ValidationPolicy)
        arguments.require_instance("execution", execution, ExecutionPlan)
        arguments.require_instance("recorder", recorder, SpanRecorder)
        if preprocess is not None and not callable(preprocess):
            raise TypeError(f"preprocess must be a function of a batch or None; got {preprocess!r}")
        self.model = model
        self._preprocess = preprocess
        self.validation = validation if validation is not None else ValidationPolicy()
        self.execution = execution if execution is not None else ExecutionPlan()
        self.recorder = recorder if recorder is not None else SpanRecorder()
        self.accounts: list[EpochAccount] = []
        self.step_validations: list[StepValidation] = []
        self.messages: list[str] = []
        self.ended: str | None = None
        self._in_memory_bytes = numbers.require_count("in_memory_bytes", in_memory_bytes, minimum=0)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """One training step: updates the model's variables and returns logs of scalars by name.

        Called while tracing, on the training thread. The default is the model's own `train_step`.

        Args:
            batch: `x`, `(x, y)` or `(x, y, sample_weight)`, nested as the data is, the batch along axis 0.
        """
        return self.model.train_step(batch)

    def validation_step(self, batch: Any) -> Mapping[str, Any]:
        """One validation step: updates the metrics and returns logs of scalars by name.

        Called while tracing, on the training thread, with every variable of the model replaced by a value
        of the snapshot. The default is the model's own `test_step`.

        Args:
            batch: as for `train_step`.
        """
        return self.model.test_step(batch)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: fit_arguments.Verbosity = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        *,
        resume: str | os.PathLike[str] | CheckpointPolicy | None = None,
    ) -> keras.callbacks.History:
        """Trains the model; takes the arguments of `keras.Model.fit` and means the same by them.

        `validation_data` may also be a dict of several sets by name, such as
        `{"clean": (x, y), "noisy": ValidationSet(data=dataset, freq=5)}`, whose metrics are then called
        `val_clean_loss` and so on. An `EvaluationFunction` in it is called with a model of each epoch's
        weights, like those of `ValidationPolicy(functions=...)`.

        Args beyond those of Keras:
            resume: a directory, or a `CheckpointPolicy`, for checkpoints of this training. If it holds one,
                the training goes on from there, with the result of an unbroken run.

        Returns:
            A `keras.callbacks.History` with each value under the epoch to which it belongs; its attribute
            `ended` is that of the trainer. After a first Ctrl-C or SIGTERM it holds what was delivered.

        Raises:
            ValueError: for an argument out of range, empty or mismatched data, or a model that is not
                compiled; before anything starts.
            TypeError: for an argument of the wrong type; likewise.
            ValidationWorkerError: a worker failed; chained to what it raised.
            ValidationTimeoutError: a validation took longer than the policy's `timeout_s`.
            ClusterError: a training on several hosts, or the evaluator of one, cannot start or go on.
            CheckpointError: a checkpoint cannot be written, is damaged, or belongs to another training.
            KeyboardInterrupt: a second signal came before the first was obeyed.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "resume")}
        if self._is_around("fit"):
            return self._fit_by_model(given, resume)
        fit_arguments.check_fit(
            epochs=epochs,
            initial_epoch=initial_epoch,
            batch_size=batch_size,
            validation_batch_size=validation_batch_size,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_split=validation_split,
            validation_freq=validation_freq,
            verbose=verbose,
            shuffle=shuffle,
        )
        policy = checkpoint_policy(resume)
        keras_models.require_compiled(self.model)
        validation_data, functions = split_functions(validation_data, self.validation.functions, is_set)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = keras_data.split_validation(
                (x, y, sample_weight), validation_split
            )
        sets = named_sets(
            validation_data,
            ValidationSet(
                data=None,
                freq=validation_freq,
                steps=validation_steps,
                batch_size=validation_batch_size or batch_size,
            ),
        )
        if self.replicas is not None:
            self.replicas.check_model(self.model)
            if functions and not self._validates_alone:
                raise ValueError(
                    "evaluation functions are for one host; leave them out on several, or with an evaluator"
                )
        if not self._hosts.is_chief:
            verbose = 0
        steps_per_epoch = keras_training.capped_steps(steps_per_epoch)
        feed = make_feed(
            keras_data.recognize(
                x,
                y,
                sample_weight,
                batch_size=batch_size,
                steps=steps_per_epoch,
                shuffle=shuffle,
                class_weight=class_weight,
            ),
            hold_in_memory=self._setup().holds_in_memory,
            preprocess=self._preprocess,
        )
        if self.replicas is not None and self.replicas.serves:
            return self._serve(feed, sets, callbacks, epochs)
        schedule = Schedule(
            initial_epoch,
            keras_training.capped_epochs(epochs),
            self.validation.timeout_s,
            judges_overlap=self.validation.judges_overlap and self._validates_alone,
            streamed=not isinstance(feed, ArrayFeed),
        )
        self._train(
            feed,
            sets,
            schedule,
            callbacks,
            policy,
            functions=functions,
            validation_freq=validation_freq,
            verbose=verbose,
            steps_per_epoch=steps_per_epoch,
        )
        return self.model.history

    def _is_around(self, name: str) -> bool:
        """Whether a method that is not Keras's own is to be called, and has not called us."""
        around = keras_methods.overrides(self.model, name) or keras_methods.patched_by(self.model, name)
        return around is not None and not routes.is_within(self.model, name)

    def _fit_by_model(self, given: dict[str, Any], resume: Any) -> keras.callbacks.History:
        """Calls a `fit` of the model's own, or one that a library has put in place of Keras's.

        What it passes on to `keras.Model.fit` comes back here.

        Args:
            given: the arguments of `fit`.
            resume: as for `fit`.
        """
        defaults = inspect.signature(Trainer.fit).parameters
        passed = {name: value for name, value in given.items() if value is not defaults[name].default}
        with routes.through(self.model, functools.partial(self.fit, resume=resume)) as route:
            history = self.model.fit(**passed)
        owner = keras_methods.overrides(self.model, "fit")
        name = (
            f"{owner.__name__}.fit"
            if owner
            else f"keras.Model.fit of {keras_methods.patched_by(self.model, 'fit')}"
        )
        if not route.used:
            self._forget([])
            self.ended = "completed"
            self.messages.append(
                f"{name} has trained by itself: it did not call keras.Model.fit, so nothing overlapped"
            )
        elif owner is None:
            self.messages.append(f"{name} was called around this training")
        return history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: fit_arguments.Verbosity = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Evaluates the model as it is, with the same workers as `fit`; as `keras.Model.evaluate`.

        Returns:
            A dict of floats by metric name if `return_dict`, otherwise a list in Keras's order, or the
            loss alone if there is no other metric.

        Raises:
            ValueError: for an argument out of range, empty data, or a model that is not compiled.
            TypeError: for an argument of the wrong type.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        if self._is_around("evaluate"):
            defaults = inspect.signature(Trainer.evaluate).parameters
            passed = {name: value for name, value in given.items() if value is not defaults[name].default}
            with routes.through(self.model, self.evaluate, name="evaluate"):
                return self.model.evaluate(**passed)
        fit_arguments.check_evaluate(batch_size=batch_size, steps=steps, verbose=verbose)
        keras_models.require_compiled(self.model)

        with contextlib.ExitStack() as resources:
            data = ValidationSet(data=(x, y, sample_weight), steps=steps, batch_size=batch_size)
            callback_list = make_callback_list(
                self.model, callbacks, verbose=0, epochs=1, steps=None, history=False
            )
            state, suite = make_suite(
                self._setup(), (), {"": data}, callback_list, resources, within_evaluate=True
            )
            logs = evaluate_now(state, suite, callback_list)
        return logs if return_dict else keras_metrics.flatten_logs(self.model, logs)

    def _train(
        self,
        feed: Feed,
        sets: Mapping[str, ValidationSet],
        schedule: Schedule,
        callbacks: Any,
        policy: CheckpointPolicy | None,
        *,
        functions: Mapping[str, EvaluationFunction],
        validation_freq: int | Sequence[int],
        verbose: fit_arguments.Verbosity,
        steps_per_epoch: int | None,
    ) -> None:
        """Assembles a training, runs it, and prints what became of its epochs."""
        model, group = self.model, keras_training.steps_per_execution(self.model)
        with contextlib.ExitStack() as resources:
            cursor = Cursor(feed, steps_per_epoch, group)
            callback_list = make_callback_list(
                model, callbacks, verbose=verbose, epochs=schedule.epochs, steps=cursor.steps_per_epoch
            )
            progress = ProgressReporter(schedule.epochs, cursor.steps_per_epoch, verbose=verbose)
            resources.enter_context(progress)
            self._forget(progress.messages)
            assemble = functools.partial(
                assemble_fit,
                self._setup(),
                feed,
                cursor,
                callback_list,
                progress,
                sets,
                functions,
                policy,
                resources,
                validation_freq=validation_freq,
                initial_epoch=schedule.initial_epoch,
                epochs=schedule.epochs,
                on_step_validation=self.step_validations.append,
            )
            # Where nothing else asks for it, the steps are traced when Keras traces them: behind the first
            # hooks.
            parts = assemble() if policy is not None or self._hosts.count > 1 else None
            if parts is not None and parts.resumer is not None:
                parts.resumer.rewind_files(callback_list.callbacks)
            told = parts.callbacks if parts is not None else callback_list
            opening = open_fit(
                model,
                told,
                initial_epoch=schedule.initial_epoch,
                epochs=schedule.epochs,
                traced=parts is not None,
            )
            if opening.epoch >= schedule.epochs and parts is None:
                if schedule.epochs > 0 and isinstance(model.optimizer, keras.optimizers.Optimizer):
                    model.optimizer.finalize_variable_values(model.trainable_weights)
                callback_list.on_train_end(logs=None)
                self.ended = model.history.ended = "completed"
                return
            parts = parts or assemble()
            session = FitSession(parts, schedule, opening, lambda before: assemble(before=before))
            self._run(session, parts)
        if verbose != 0 and self.accounts:
            print(format_epoch_table([(a, session.epoch_logs[a.epoch]) for a in self.accounts]))

    def _run(self, session: FitSession, parts: Parts) -> None:
        """Runs a session and keeps its accounts, however it ends."""
        try:
            session.run()
            self.ended = session.ended
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError) as error:
            if self._hosts.count == 1:
                raise
            raise HostLostError(
                f"host {self._hosts.index} cannot go on, because another host has gone or does not answer; "
                "start all of them again, with fit(resume=...) from the last checkpoint"
            ) from error
        finally:
            self.accounts = parts.accounts.closed()
            if self.model.history is not None:
                self.model.history.ended = self.ended

    def _forget(self, messages: list[str]) -> None:
        """Begins anew to keep what a `fit` tells; the list is filled while it runs."""
        self.ended, self.messages = "failed", messages
        self.accounts, self.step_validations = [], []

    def _serve(
        self, feed: Feed, sets: Mapping[str, ValidationSet], callbacks: Any, epochs: int
    ) -> keras.callbacks.History:
        """Is the evaluator of the hosts that train, and returns the history that they return."""
        self._forget([])
        callback_list = make_callback_list(self.model, callbacks, verbose=0, epochs=epochs, steps=None)
        with contextlib.ExitStack() as resources:
            self.ended = serve_fit(self._setup(), feed, callback_list, sets, resources)
        return self.model.history

    @property
    def _validates_alone(self) -> bool:
        """Whether this host alone trains and validates, so that the two compete for it."""
        return self._hosts.count == 1 and (self.replicas is None or self.replicas.evaluator is None)

    @property
    def _hosts(self) -> Alone:
        """The hosts that train together."""
        return self.replicas.hosts if self.replicas is not None else Alone()

    def _setup(self) -> Setup:
        return Setup(
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
