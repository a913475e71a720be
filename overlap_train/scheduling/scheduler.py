"""`MultiModelScheduler`: several models at once on the devices of one machine.

    with MultiModelScheduler({"detector": m1, "classifier": m2}) as scheduler:
        future = scheduler.submit("detector", x, deadline_s=0.05)
        boxes = future.result()

`preparing.py` prepares the models, `service.py` answers what is submitted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from overlap_train._support.arguments import (
    require_choice,
    require_count,
    require_mapping,
    require_real,
    require_seconds,
    require_text,
)
from overlap_train._support.closing import Closing
from overlap_train._support.imports import require_tensorflow
from overlap_train.scheduling.accounts import SchedulerStatistics
from overlap_train.scheduling.costs import CostModel
from overlap_train.scheduling.engine import Engine, Recorder
from overlap_train.scheduling.graph import Device, Platform, require_priority
from overlap_train.scheduling.policy import Policy
from overlap_train.scheduling.service import Service, Submission

_ON_LATE = ("run", "drop", "reject")


class MultiModelScheduler(Closing):
    """Run requests for several models, each layer on the device that a policy chooses.

    Any thread may call any method.

    Args:
        models: Keras models by name; `add` adds more.
        devices: a `Platform` or a list of `Device` with the names of TensorFlow devices; None means the CPU
            with all its cores, and every GPU. Call `tf.config.threading.set_intra_op_parallelism_threads(1)`
            before TensorFlow starts, or segments compete for the cores.
        policy: "earliest_finish", "paper", "gpu_only", "cpu_only", or a `Policy`.
        costs: what is known of run times, such as that of another scheduler; None means an empty `CostModel`.
        max_batch: the most waiting examples of one model to run together; None measures what saves time.
        max_pending: submissions that may wait for each model before `submit` blocks.
        cut: the number of pieces in which a large layer runs while most cores are idle, unless the profile
            shows little gain. Large are convolutions of at least 2^26 FLOPs and dense layers of at least 2^20
            weights; a piece's size follows the speed of its device.
        fold: fold layers into the convolutions before them, with the present weights, and compute these by
            `tiled_conv2d`, where that is equal up to rounding and faster. The model itself stays as it is;
            add it again if its weights have changed. With False, requests use changed weights.
        zero_copy: read NumPy inputs in place where their alignment allows it; do not change them before the
            result has arrived.
        recorder: gets a `Span` for each segment that has run.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a value is out of range, or there is no such device.
    """

    def __init__(
        self,
        models: Mapping[str, Any] | None = None,
        *,
        devices: Platform | list[Device] | None = None,
        policy: str | Policy = "earliest_finish",
        costs: CostModel | None = None,
        max_batch: int | None = None,
        max_pending: int = 64,
        cut: int = 1,
        fold: bool = True,
        zero_copy: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        # On first use only: it imports TensorFlow.
        from overlap_train.scheduling.preparing import ModelBuilder

        models = _checked_models(models)
        self._max_batch = max_batch if max_batch is None else require_count("max_batch", max_batch, minimum=1)
        self._max_pending = require_count("max_pending", max_pending, minimum=1)
        self._builder = builder = ModelBuilder(devices, costs, cut=cut, fold=fold, zero_copy=zero_copy)
        engine = Engine(builder.platform, policy, costs=builder.costs, recorder=recorder)
        self._service = Service(engine, builder.tensors)
        try:
            for name, model in models.items():
                self.add(name, model)
        except BaseException:
            self.close()
            raise

    def add(
        self,
        name: str,
        model: Any,
        **build: Any,
    ) -> None:
        """Add a model: split, fold, compile and measure it on the calling thread.

        Args:
            name: the name for `submit`.
            model: a built Keras model.
            **build: `input_specs`, for a subclassed model.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: the name is taken, a number is below 1, or the model cannot be split.
            SchedulerClosedError: the scheduler is closed.
            RuntimeError: this process was forked from one that had used TensorFlow, or Keras runs on another
                backend.
        """
        from overlap_train._keras import forks
        from overlap_train._keras import models as keras_models

        forks.require_runtime()

        name = require_text("name", name)
        require_tensorflow()
        keras_models.require_model(model)
        self._service.require_free(name)
        self._service.add(self._builder.build(name, model, self._max_pending, self._max_batch, **build))

    def remove(self, name: str) -> None:
        """Remove a model as soon as what was submitted for it has ended, and wait for that.

        Raises:
            KeyError: no model has that name.
            SchedulingError: it is called in a callback of a future.
        """
        self._service.remove(self._service.model(name))

    def submit(
        self,
        name: str,
        x: Any,
        *,
        priority: int = 0,
        deadline_s: float | None = None,
        on_late: str = "run",
        timeout_s: float | None = None,
    ) -> Future[Any]:
        """Request `models[name](x)` in inference mode.

        A layer that the model's graph calls with `training=True` keeps that. A layer whose own default is
        `training=True`, such as one that augments images, behaves as in `predict`.

        Args:
            name: the name of the model.
            x: the model's input, as arrays or tensors `[N, ...]`.
            priority: larger is more urgent; one unit counts as a second of waiting.
            deadline_s: seconds from now; the earlier it is, the more urgent is the request.
            on_late: what happens if the deadline cannot be met. "run" delivers the result anyway, and
                `statistics()` counts a miss. "drop" fails the future with DeadlineError if the request would
                be late even if it began now. With "reject", `submit` raises it at once, judging by recent run
                times and by what runs before; later requests with "reject" cannot make an accepted one late.
            timeout_s: seconds to wait for room in the model's queue; None waits for ever, 0 not at all.

        Returns:
            A future of what the model returns, as NumPy arrays; they are read-only views where that saves a
            copy. Its callbacks run on the thread that ends it, which must not wait for itself. Called in
            them, `submit` does not wait for room, whatever `timeout_s` says, and `remove` and `drain` raise
            SchedulingError.

        Raises:
            KeyError: no model has that name.
            TypeError: an argument has the wrong type.
            ValueError: a number is out of range, or `on_late` is not one of the three.
            DeadlineError: with "reject": it would be late; `predicted_s` says when it would be done.
            QueueFullError: there was no room for `timeout_s` seconds.
            SchedulerClosedError: the scheduler or the model was closed.
            RuntimeError: this process was forked from one that had used TensorFlow.
        """
        from overlap_train._keras import forks  # here, as it imports TensorFlow

        forks.require_runtime()
        arrival_s = time.monotonic()
        priority = require_priority("priority", priority)
        on_late = require_choice("on_late", on_late, _ON_LATE)
        if deadline_s is not None:
            deadline_s = require_real("deadline_s", deadline_s)
        elif on_late != "run":
            raise ValueError(f"on_late={on_late!r} needs deadline_s; without a deadline nothing is late")
        if timeout_s is not None:
            timeout_s = require_seconds("timeout_s", timeout_s, zero=True)
        model = self._service.model(name)
        inputs = model.flatten(x)
        submission = Submission(
            model,
            inputs,
            len(inputs[0]),
            Future(),
            arrival_s,
            priority,
            None if deadline_s is None else arrival_s + deadline_s,
            on_late,
        )
        self._service.submit(submission, timeout_s)
        return submission.future

    def statistics(self) -> SchedulerStatistics:
        """Return the counts, latencies, missed deadlines and use of devices so far."""
        return self._service.statistics()

    def drain(self) -> None:
        """Wait until all submitted requests have ended.

        Raises:
            SchedulingError: it is called in a callback of a future.
        """
        self._service.drain()

    def close(self) -> None:
        """End the workers; unfinished requests fail with SchedulerClosedError. May be called repeatedly."""
        self._service.close()

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if kind is None and not self._service.closed:
            self.drain()
        self.close()

    def __del__(self) -> None:
        service = getattr(self, "_service", None)
        if service is not None and not service.closed:
            warnings.warn(
                "a MultiModelScheduler was not closed; use it in a with statement", ResourceWarning, 2
            )


def _checked_models(models: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if models is None:
        return {}
    from overlap_train._keras import models as keras_models  # on first use: it imports TensorFlow

    models = require_mapping("models", models, expected="a mapping of models")
    for name, model in models.items():
        require_tensorflow()
        keras_models.require_model(model, f"models[{require_text('a name in models', name)!r}]")
    return models
