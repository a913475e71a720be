"""`Trainer`: `keras.Model.fit` with the validation overlapped. It wires the rooms; `session.py` walks them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from overlap_train import _keras, arguments
from overlap_train.callbacks.delivery import Delivery
from overlap_train.callbacks.hooks import ordering_hooks
from overlap_train.data.cursor import Cursor
from overlap_train.data.shards import make_batches
from overlap_train.data.sources import Feed, FeedOptions, IteratorFeed, make_feed
from overlap_train.monitoring.accounts import Accounts
from overlap_train.monitoring.progress import ProgressReporter
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.monitoring.table import format_epoch_table
from overlap_train.records import EpochAccount
from overlap_train.session import FitSession, Parts, Schedule
from overlap_train.snapshot import ModelState
from overlap_train.training.execution import LoopCache, Task, make_execution
from overlap_train.training.plan import ExecutionPlan
from overlap_train.training.step import Step, build_model
from overlap_train.validation.evaluation import SnapshotEvaluator
from overlap_train.validation.policy import ValidationPolicy
from overlap_train.validation.pool import WorkerPool
from overlap_train.validation.runner import ValidationRunner

__all__ = ["Trainer"]


class Trainer:
    """Trains a compiled Keras model, validating each epoch while the next one is trained.

    The calling thread trains, in compiled calls of many steps, and runs all callbacks. At an epoch's end it
    takes a snapshot of the weights; a pool of worker threads evaluates it, each on its part of the
    validation set, with the numbers that `keras.Model.evaluate` would give. Override `train_step` and
    `validation_step` to change what a step does.

    Attributes:
        model: the model.
        validation: how the validation runs.
        recorder: what each thread did when.
        accounts: where the time of each epoch of the last `fit` went.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        validation: ValidationPolicy | None = None,
        execution: ExecutionPlan | None = None,
        recorder: SpanRecorder | None = None,
        in_memory_bytes: int = 4 << 30,
    ) -> None:
        """Wraps a model.

        Args:
            model: a Keras model; compiled before `fit` or `evaluate` is called, built or not.
            validation: how the validation runs; see `ValidationPolicy`.
            execution: how the steps are executed; see `ExecutionPlan`.
            recorder: keeps the spans of all threads for a timeline; a new one if None.
            in_memory_bytes: training arrays up to this size are held as tensors for the compiled loop;
                larger ones go through `tf.data`.

        Raises:
            TypeError: if an argument has the wrong type.
        """
        arguments.require_model(model)
        arguments.require_instance("validation", validation, ValidationPolicy)
        arguments.require_instance("execution", execution, ExecutionPlan)
        arguments.require_instance("recorder", recorder, SpanRecorder)
        self.model = model
        self.validation = validation if validation is not None else ValidationPolicy()
        self.execution = execution if execution is not None else ExecutionPlan()
        self.recorder = recorder if recorder is not None else SpanRecorder()
        self._loops = LoopCache()
        self.accounts: list[EpochAccount] = []
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
        verbose: int | str = "auto",
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
    ) -> keras.callbacks.History:
        """Trains the model; takes the arguments of `keras.Model.fit` and means the same by them.

        Returns:
            A `keras.callbacks.History` with each value under the epoch to which it belongs.

        Raises:
            ValueError: for an argument out of range, empty or mismatched data, or a model that is not
                compiled; before anything starts.
            TypeError: for an argument of the wrong type; likewise.
            ValidationWorkerError: a worker failed; chained to what it raised.
            ValidationTimeoutError: a validation took longer than the policy's `timeout_s`.
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
        _keras.require_compiled(self.model)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = _keras.split_validation(
                (x, y, sample_weight), validation_split
            )
        options = FeedOptions(batch_size, steps_per_epoch, shuffle, class_weight)
        feed = make_feed(x, y, sample_weight, options, hold_in_memory=self._fits_in_memory)
        if isinstance(feed, IteratorFeed):
            feed.prepare()

        with contextlib.ExitStack() as resources:
            cursor = Cursor(feed, steps_per_epoch)
            limit = _keras.max_epochs()
            epochs = epochs if limit is None else min(epochs, limit)
            callback_list = self._callback_list(callbacks, verbose, epochs, cursor.steps_per_epoch)
            step = self._make_step(callback_list)
            logs_spec = build_model(self.model, step, feed.element_spec)
            state = ModelState(self.model)
            runner = None
            if validation_data is not None:
                runner = self._make_runner(
                    state,
                    validation_data,
                    validation_batch_size or batch_size,
                    validation_steps,
                    resources,
                )
            progress = resources.enter_context(
                ProgressReporter(epochs, cursor.steps_per_epoch, verbose=verbose)
            )
            total_steps = None if cursor.steps_per_epoch is None else epochs * cursor.steps_per_epoch
            stock = getattr(self.train_step, "__func__", None) is Trainer.train_step
            task = Task(self.model, feed, step, logs_spec, self.train_step, stock, total_steps, self._loops)
            loop, pace = make_execution(task, self.execution, progress.message)
            parts = Parts(
                model=self.model,
                state=state,
                step=step,
                loop=loop,
                cursor=cursor,
                pace=pace,
                runner=runner,
                delivery=Delivery(
                    self.model,
                    state,
                    callback_list,
                    on_change=self.validation.on_change,
                    revalidate=runner.evaluate if runner is not None else _no_validation,
                ),
                callbacks=callback_list,
                progress=progress,
                recorder=self.recorder,
                accounts=Accounts(),
            )
            max_lag = self._effective_lag(feed, runner, callback_list, progress)
            validates = arguments.epoch_selector(validation_freq)
            schedule = Schedule(initial_epoch, epochs, validates, max_lag, self.validation.timeout_s)
            session = FitSession(parts, schedule)
            resources.callback(session.close)
            try:
                session.run()
            finally:
                self.accounts = parts.accounts.closed()
        if verbose != 0 and self.accounts:
            print(format_epoch_table([(a, session.epoch_logs[a.epoch]) for a in self.accounts]))
        return self.model.history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
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
        arguments.check_fit(batch_size=batch_size, steps_per_epoch=steps, verbose=verbose)
        _keras.require_compiled(self.model)
        with contextlib.ExitStack() as resources:
            step = Step(self.model, self.validation_step)
            data = (x, y, sample_weight)
            adapter = _keras.adapt(*data, batch_size=batch_size, steps=steps)
            if not _keras.compiled_metrics_built(self.model):
                step.inspect(adapter.get_tf_dataset().element_spec)
            state = ModelState(self.model)
            runner = self._make_runner(state, data, batch_size, steps, resources)
            callback_list = self._callback_list(callbacks, 0, 1, None, history=False)
            callback_list.on_test_begin()
            logs = runner.evaluate(state.read())
            callback_list.on_test_end(logs)
        return logs if return_dict else _keras.flatten_logs(self.model, logs)

    def _fits_in_memory(self, size_bytes: int) -> bool:
        loop = self.execution.loop
        return loop == "in_memory" or (loop != "iterator" and size_bytes <= self._in_memory_bytes)

    def _make_step(self, callbacks: keras.callbacks.CallbackList) -> Step:
        nan_guard = any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks.callbacks)
        return Step(
            self.model,
            self.train_step,
            jit_compile=bool(self.model.jit_compile) and not self.model.run_eagerly,
            halt_on_nonfinite=nan_guard,
        )

    def _make_runner(
        self,
        state: ModelState,
        data: Any,
        batch_size: int | None,
        steps: int | None,
        resources: contextlib.ExitStack,
    ) -> ValidationRunner:
        """Builds the evaluator and starts its workers, which `resources` will end."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        batches = make_batches(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            steps=steps,
            cache_bytes=self.validation.cache_bytes,
        )
        evaluator = SnapshotEvaluator(self.model, state, self.validation_step, batches)
        workers = self.validation.resolved_workers
        if batches.num_batches is not None:
            workers = min(workers, batches.num_batches)
        pool = resources.enter_context(WorkerPool(1 if evaluator.indivisible else workers))
        runner = ValidationRunner(evaluator, batches, pool, self.recorder.add)
        resources.callback(runner.close)
        return runner

    def _callback_list(
        self, callbacks: Any, verbose: int | str, epochs: int, steps: int | None, *, history: bool = True
    ) -> keras.callbacks.CallbackList:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        return keras.callbacks.CallbackList(
            callbacks,
            add_history=history,
            add_progbar=False,
            model=self.model,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )

    def _effective_lag(
        self,
        feed: Feed,
        runner: ValidationRunner | None,
        callbacks: keras.callbacks.CallbackList,
        progress: ProgressReporter,
    ) -> int:
        """Returns how far the training may run ahead so that nobody can tell; says why if not at all."""
        if runner is None or self.validation.max_lag == 0:
            return self.validation.max_lag
        if runner.evaluator.mutated:
            progress.message(f"validating in step with the training: {runner.evaluator.indivisible}")
            return 0
        if self.validation.on_change == "continue":
            return self.validation.max_lag
        for callback in callbacks.callbacks:
            hooks = ordering_hooks(callback)
            if hooks:
                progress.message(
                    f"validating in step with the training: {type(callback).__name__}.{hooks[0]} must not run "
                    'for an epoch that may be rolled back; ValidationPolicy(on_change="continue") overlaps'
                )
                return 0
        if not feed.rewindable:
            progress.message(
                "validating in step with the training: this data is made by Python and cannot be rewound; "
                'ValidationPolicy(on_change="continue") overlaps'
            )
            return 0
        return self.validation.max_lag


def _no_validation(_: Any) -> dict[str, float]:
    raise RuntimeError("there is no validation data to evaluate")
