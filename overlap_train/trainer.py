"""`Trainer`: `keras.Model.fit` with the validation overlapped. It wires the rooms; `session.py` runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from overlap_train import _keras, arguments
from overlap_train.callbacks.hooks import wants_test_batches
from overlap_train.data.cursor import Cursor
from overlap_train.data.preprocessing import Preprocess
from overlap_train.data.sources import Feed, FeedOptions, IteratorFeed, make_feed
from overlap_train.errors import HostLostError
from overlap_train.following import agree_to_start, deliver_together, make_resumer
from overlap_train.interrupts import Interrupts
from overlap_train.lag import effective_lag
from overlap_train.monitoring.accounts import Accounts
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.monitoring.table import format_epoch_table
from overlap_train.parallel.hosts import Alone
from overlap_train.parallel.step import make_step
from overlap_train.parallel.strategy import find_strategy
from overlap_train.records import EpochAccount, StepValidation
from overlap_train.resume import CheckpointPolicy, Resumer, checkpoint_policy, fingerprint
from overlap_train.session import FitSession, Parts, Schedule
from overlap_train.snapshot import ModelState
from overlap_train.training.execution import LoopCache, Task, make_execution
from overlap_train.training.loops import Loop
from overlap_train.training.pace import Pace
from overlap_train.training.plan import ExecutionPlan
from overlap_train.training.step import Step, StepFunction, build_model
from overlap_train.validation.backlog import Backlog
from overlap_train.validation.policy import ValidationPolicy, ValidationSet
from overlap_train.validation.sets import build_suite, named_sets
from overlap_train.validation.stepwise import StepValidations
from overlap_train.validation.suite import ValidationSuite

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
                is then shared by its replicas. None finds it out from the model.
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
        arguments.require_model(model)
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
        self._loops = LoopCache()
        self.accounts: list[EpochAccount] = []
        self.step_validations: list[StepValidation] = []
        self.ended: str | None = None
        self._in_memory_bytes = arguments.require_count("in_memory_bytes", in_memory_bytes, minimum=0)

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
        verbose: arguments.Verbosity = "auto",
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
        `val_clean_loss` and so on.

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
            CheckpointError: a checkpoint cannot be written, is damaged, or belongs to another training.
            KeyboardInterrupt: a second signal came before the first was obeyed.
        """
        arguments.check_fit(
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
        _keras.require_compiled(self.model)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = _keras.split_validation(
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
        if not self._hosts.is_chief:
            verbose = 0
        options = FeedOptions(batch_size, steps_per_epoch, shuffle, class_weight, self._preprocess)
        feed = make_feed(x, y, sample_weight, options, hold_in_memory=self._fits_in_memory)
        schedule = Schedule(
            initial_epoch,
            _capped(epochs),
            self.validation.timeout_s,
            judges_overlap=self.validation.judges_overlap and self._hosts.count == 1,
        )
        with contextlib.ExitStack() as resources:
            cursor = Cursor(feed, steps_per_epoch)
            callback_list = _callback_list(
                self.model, callbacks, verbose=verbose, epochs=schedule.epochs, steps=cursor.steps_per_epoch
            )
            progress = ProgressReporter(schedule.epochs, cursor.steps_per_epoch, verbose=verbose)
            resources.enter_context(progress)
            parts = self._assemble(
                feed, cursor, callback_list, progress, sets, policy, resources, epochs=schedule.epochs
            )
            session = FitSession(parts, schedule)
            resources.callback(parts.backlog.drop)
            self._run(session, parts)
        if verbose != 0 and self.accounts:
            print(format_epoch_table([(a, session.epoch_logs[a.epoch]) for a in self.accounts]))
        return self.model.history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: arguments.Verbosity = "auto",
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
        arguments.check_evaluate(batch_size=batch_size, steps=steps, verbose=verbose)
        _keras.require_compiled(self.model)

        def built_state(element_spec: Any) -> ModelState:
            if not _keras.compiled_metrics_built(self.model):
                Step(self.model, self.validation_step).inspect(element_spec)
            return ModelState(self.model)

        with contextlib.ExitStack() as resources:
            data = ValidationSet(data=(x, y, sample_weight), steps=steps, batch_size=batch_size)
            callback_list = _callback_list(
                self.model, callbacks, verbose=0, epochs=1, steps=None, history=False
            )
            suite = self._suite(built_state, {"": data}, callback_list, resources)
            values = ModelState(self.model).read()
            callback_list.on_test_begin()
            result = suite.evaluate("", values)
            for batch, metrics in enumerate(result.running):
                callback_list.on_test_batch_begin(batch)
                callback_list.on_test_batch_end(batch, metrics)
            logs = dict(result.metrics)
            callback_list.on_test_end(logs)
        return logs if return_dict else _keras.flatten_logs(self.model, logs)

    def _assemble(
        self,
        feed: Feed,
        cursor: Cursor,
        callbacks: keras.callbacks.CallbackList,
        progress: ProgressReporter,
        sets: Mapping[str, ValidationSet],
        policy: CheckpointPolicy | None,
        resources: contextlib.ExitStack,
        *,
        epochs: int,
    ) -> Parts:
        """Builds everything that one `fit` needs, and traces it."""
        if isinstance(feed, IteratorFeed):
            feed.prepare()
        if self.replicas is not None:
            plans = {"number of epochs": epochs, "ExecutionPlan": self.execution}
            agree_to_start(self.replicas, self.model, feed, self.validation, callbacks.callbacks, plans)
        step = self._step(callbacks, feed)
        logs_spec = build_model(self.model, step, feed.element_spec)
        state = ModelState(self.model)
        suite = self._suite(lambda _: state, sets, callbacks, resources)
        if self.validation.sanity_check:
            suite.sanity_check(state.read())
        self.step_validations = []
        every = self.validation.every_steps
        max_lag, reason = effective_lag(self.validation, feed, suite, callbacks.callbacks)
        shared, delivery = deliver_together(
            self._hosts,
            self.model,
            state,
            callbacks,
            on_change=self.validation.on_change,
            revalidate=suite.evaluate,
        )
        if reason is not None:
            progress.message(f"validating in step with the training: {reason}")
        steps = cursor.steps_per_epoch
        total_steps = None if steps is None else steps * epochs
        loop, pace = self._execution(feed, step, logs_spec, progress, total_steps)
        return Parts(
            model=self.model,
            state=state,
            step=step,
            loop=loop,
            cursor=cursor,
            pace=pace,
            suite=suite,
            backlog=Backlog(self.validation, suite, max_lag=max_lag),
            stepwise=StepValidations(suite, every, self.step_validations.append) if every and suite else None,
            delivery=delivery,
            callbacks=shared,
            progress=progress,
            recorder=self.recorder,
            accounts=Accounts(),
            interrupts=resources.enter_context(Interrupts()),
            resumer=self._resumer(policy, feed, resources),
            scope=self.replicas.scope if self.replicas is not None else contextlib.nullcontext,
            hosts=self._hosts,
        )

    def _execution(
        self,
        feed: Feed,
        step: Step,
        logs_spec: dict[str, Any],
        progress: ProgressReporter,
        total_steps: int | None,
    ) -> tuple[Loop, Pace]:
        """Returns the loop that the plan asks for, and the pace of its calls."""
        stock = self._is_stock
        task = Task(
            self.model,
            feed,
            step,
            logs_spec,
            self._step_function(feed),
            stock,
            total_steps,
            self._loops,
            replicated=self.replicas is not None,
        )
        plan = self.execution
        if self._hosts.count > 1 and feed.full_batch is None:
            # A collective operation must have the same shape in each step of a call.
            plan = dataclasses.replace(plan, steps_per_call=1)
        return make_execution(task, plan, progress.message)

    def _run(self, session: FitSession, parts: Parts) -> None:
        """Runs a session and keeps its accounts, however it ends."""
        self.ended = "failed"
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

    def _fits_in_memory(self, size_bytes: int) -> bool:
        loop = self.execution.loop
        return loop == "in_memory" or (loop != "iterator" and size_bytes <= self._in_memory_bytes)

    @property
    def _is_stock(self) -> bool:
        """Whether a step is the model's own `train_step`."""
        return getattr(self.train_step, "__func__", None) is Trainer.train_step

    @property
    def _hosts(self) -> Alone:
        """The hosts that train together."""
        return self.replicas.hosts if self.replicas is not None else Alone()

    def _step_function(self, feed: Feed) -> StepFunction:
        """Returns the function of one global batch."""
        if self.replicas is None:
            return self.train_step
        stock = self._is_stock and _keras.is_stock_method(self.model.train_step)
        return make_step(self.model, self.replicas, self.train_step, stock=stock, most_rows=feed.full_batch)

    def _step(self, callbacks: keras.callbacks.CallbackList, feed: Feed) -> Step:
        nan_guard = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks.callbacks)
        jit_compile = bool(self.model.jit_compile) and not self.model.run_eagerly and self.replicas is None
        replicas, metrics = self.replicas, None
        if replicas is not None and replicas.hosts.count > 1:
            metrics = functools.partial(replicas.own_metrics, self.model)
        return Step(
            self.model,
            self._step_function(feed),
            jit_compile=jit_compile,
            halt_on_nonfinite=nan_guard,
            metrics=metrics,
        )

    def _suite(
        self,
        state: Callable[[Any], ModelState],
        sets: Mapping[str, ValidationSet],
        callbacks: keras.callbacks.CallbackList,
        resources: contextlib.ExitStack,
    ) -> ValidationSuite:
        return build_suite(
            self.model,
            state,
            self.validation_step,
            sets,
            self.validation,
            batch_by_batch=any(wants_test_batches(c) for c in callbacks.callbacks),
            on_span=self.recorder.add,
            resources=resources,
            preprocess=self._preprocess,
            devices=self.validation.devices or (self.replicas.spread if self.replicas is not None else ()),
            hosts=self._hosts,
        )

    def _resumer(
        self, policy: CheckpointPolicy | None, feed: Feed, resources: contextlib.ExitStack
    ) -> Resumer | None:
        if policy is None:
            return None
        if not feed.rewindable:
            raise ValueError(
                "resume needs data whose position can be found again: arrays, or a tf.data.Dataset without "
                "Python functions and state of its own; this data has one"
            )
        belongs_to = fingerprint(self.model, feed)
        resumer = make_resumer(self._hosts, self.model, lambda: Resumer(policy, belongs_to))
        resources.callback(resumer.close)
        return resumer


def _callback_list(
    model: keras.Model,
    callbacks: Any,
    *,
    verbose: int | str,
    epochs: int,
    steps: int | None,
    history: bool = True,
) -> keras.callbacks.CallbackList:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=history,
        add_progbar=False,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )


def _capped(epochs: int) -> int:
    limit = _keras.max_epochs()
    return epochs if limit is None else min(epochs, limit)
