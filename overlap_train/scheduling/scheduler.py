"""`MultiModelScheduler`: several models at once on the devices of one machine.

    with MultiModelScheduler({"detector": m1, "classifier": m2}) as scheduler:
        future = scheduler.submit("detector", x, deadline_s=0.05)
        boxes = future.result()

One lock owns what waits and the accounts; it is never held while the engine is called. Results are
delivered on the worker thread that ran the last layer.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from overlap_train._support.arguments import require_flag, require_mapping, require_text
from overlap_train._support.numbers import require_count, require_real, require_seconds
from overlap_train.errors import QueueFullError, SchedulerClosedError
from overlap_train.scheduling.costs.model import CostModel, Costs, check_costs
from overlap_train.scheduling.graph.devices import Device, Platform
from overlap_train.scheduling.graph.requests import Request, require_priority
from overlap_train.scheduling.policies.base import Policy
from overlap_train.scheduling.runtime.accounts import Statistics
from overlap_train.scheduling.runtime.admission import Model, Submission, Waiting, join_inputs, split_outputs
from overlap_train.scheduling.runtime.engine import Engine, Recorder

__all__ = ["MultiModelScheduler"]


class MultiModelScheduler:
    """Runs requests for several models, layer by layer, where and when that is best.

    Args:
        models: Keras models by name; more can be added with `add`.
        devices: a `Platform` or a list of `Device` with the names of TensorFlow devices; the CPU with
            all its cores and every GPU unless given. On the CPU each slot runs one segment at a
            time: call `tf.config.threading.set_intra_op_parallelism_threads(1)` before TensorFlow
            starts, or segments compete for the cores.
        policy: "earliest_finish", "paper", "gpu_only", "cpu_only", "heft", "oracle", or a `Policy`.
        costs: expected run times; an empty `CostModel` unless given.
        max_active: networks that run at the same time; two for each slot unless given. What waits
            beyond that can still be batched.
        max_batch: examples of one model that may be run together when they wait anyway.
        max_pending: submissions that may wait for each model before `submit` blocks.
        aging_s: how much longer than others a request of one more priority counts as having waited.
        segments: "auto" merges layers where a call costs more than it gains, "layers" keeps every
            layer, "whole" none; a number cuts into so many segments with as many layers each.
        cut: convolutions with at least 2^26 FLOPs and dense layers with at least 2^20 weights can be run in
            so many pieces beside each other, which each request does where that is sooner; what the profile
            shows to gain little is not cut. For single examples on cores that would otherwise be idle. Needs
            `segments` "auto" or "layers". Pieces count where `oracle` takes no graphs of more than ten
            segments, and `earliest_finish` makes no plans for more than 24: it then places layer by layer.
        longest_segment_s: no segment is merged beyond this.
        constant_weights: see `compile_segments`; faster, but blind to later changes of weights.
        profile: measure every layer on every device first, whole and in pieces; unless given, if there are
            devices of two kinds or layers to cut, and `costs` is not given.
        zero_copy: read NumPy inputs in place (they must not be changed until the result is there)
            where alignment allows it.
        recorder: gets a `Span` for each segment run.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a value is out of range, or there is no such device.

    Any thread may call any method.
    """

    def __init__(
        self,
        models: Mapping[str, Any] | None = None,
        *,
        devices: Platform | list[Device] | None = None,
        policy: str | Policy = "earliest_finish",
        costs: Costs | None = None,
        max_active: int | None = None,
        max_batch: int = 1,
        max_pending: int = 64,
        aging_s: float = 1.0,
        segments: str | int = "auto",
        cut: int = 1,
        longest_segment_s: float = float("inf"),
        constant_weights: bool = False,
        profile: bool | None = None,
        zero_copy: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self._closed = True
        from overlap_train._keras import models as keras_models
        from overlap_train.scheduling.runtime.model_builder import ModelBuilder, require_cut
        from overlap_train.scheduling.runtime.tensorflow_backend import tensorflow_platform

        max_batch = require_count("max_batch", max_batch, minimum=1)
        max_pending = require_count("max_pending", max_pending, minimum=1)
        if max_active is not None:
            max_active = require_count("max_active", max_active, minimum=1)
        if profile is not None:
            profile = require_flag("profile", profile, expected="True, False or None")
        cut = require_cut(cut)
        check_costs(costs)
        models = {} if models is None else require_mapping("models", models, expected="a mapping of models")
        for name, model in models.items():
            keras_models.require_model(model, f"models[{require_text('a name in models', name)!r}]")
        platform = devices if isinstance(devices, Platform) else tensorflow_platform(devices)
        kinds = {device.kind for device in platform.devices}
        if profile is None:
            profile = (len(kinds) > 1 or cut > 1) and costs is None
        costs = costs if costs is not None else CostModel()
        self._builder = ModelBuilder(
            platform,
            costs,
            segments=segments,
            cut=cut,
            longest_s=longest_segment_s,
            constant_weights=constant_weights,
            profile=profile,
            zero_copy=zero_copy,
        )
        self._max_active = max_active or 2 * sum(device.slots for device in platform.devices)
        self._max_batch, self._max_pending = max_batch, max_pending
        self._changed = threading.Condition()
        aging_s = require_real("aging_s", aging_s, minimum=0)
        self._waiting = Waiting(aging_s, _lanes(platform))
        self._active = 0
        self._numbers = itertools.count()
        self._engine = Engine(platform, policy, costs=costs, recorder=recorder, aging_s=aging_s)
        self._closed = False
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
        *,
        max_batch: int | None = None,
        max_pending: int | None = None,
        **build: Any,
    ) -> None:
        """Takes a model into service: splits, profiles and compiles it on the calling thread.

        Args:
            name: by which `submit` knows it.
            model: a built Keras model.
            max_batch: as for the scheduler, for this model.
            max_pending: as for the scheduler, for this model.
            **build: `input_specs` for a subclassed model.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: the name is taken, a number is below 1, or the model cannot be split.
            SchedulerClosedError: the scheduler is closed.
        """
        from overlap_train._keras import models as keras_models

        name = require_text("name", name)
        keras_models.require_model(model)
        pending = self._max_pending if max_pending is None else max_pending
        batch = self._max_batch if max_batch is None else max_batch
        pending = require_count("max_pending", pending, minimum=1)
        batch = require_count("max_batch", batch, minimum=1)
        with self._changed:
            self._check_open()
            if name in self._waiting.models:
                raise ValueError(
                    f"a model named {name!r} is in service; remove it first or choose another name"
                )
        built = self._builder.build(name, model, pending, batch, **build)
        self._engine.prepare(built.graph)
        with self._changed:
            self._check_open()
            if name in self._waiting.models:
                raise ValueError(f"a model named {name!r} was added meanwhile")
            self._waiting.models[name] = built

    def remove(self, name: str, *, drain: bool = True) -> None:
        """Takes a model out of service and waits until nothing of it runs.

        Args:
            name: which.
            drain: finish what was submitted; otherwise it fails with SchedulerClosedError.

        Raises:
            KeyError: no model has that name.
        """
        with self._changed:
            model = self._model(name)
            model.removed = True
            self._changed.notify_all()
            dropped = [] if drain else model.waiting[:]
            if not drain:
                model.waiting.clear()
        error = SchedulerClosedError(f"model {name!r} was removed")
        for submission in dropped:
            self._settle(submission, None, error)
        if not drain:
            self._engine.abandon(lambda request: request.graph is model.graph, error)
        with self._changed:
            while model.waiting or model.running:
                self._changed.wait()
            self._waiting.models.pop(name, None)
            self._changed.notify_all()

    def submit(
        self,
        name: str,
        x: Any,
        *,
        priority: int = 0,
        deadline_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Future[Any]:
        """Asks for `models[name](x)`.

        Args:
            name: of the model.
            x: what the model takes, as arrays or tensors `[N, ...]`.
            priority: larger is more urgent.
            deadline_s: from now; a miss is counted in `statistics()`, the result is delivered all the same.
            timeout_s: how long to wait for room in the model's queue; forever unless given, 0 not at all.

        Returns:
            A future of what the model returns, as NumPy arrays, read-only views where that saves a copy.
            Its callbacks run on a worker: there, call `submit` with `timeout_s=0` only, or the worker
            may wait for itself.

        Raises:
            KeyError: no model has that name.
            TypeError, ValueError: a number is none, or out of range.
            QueueFullError: there was no room for `timeout_s`.
            SchedulerClosedError: the scheduler or the model was closed.
        """
        arrival_s = time.monotonic()
        priority = require_priority("priority", priority)
        if deadline_s is not None:
            deadline_s = require_real("deadline_s", deadline_s)
        if timeout_s is not None:
            timeout_s = require_seconds("timeout_s", timeout_s, zero=True)
        with self._changed:
            model = self._model(name)
        inputs = model.flatten(x)
        submission = Submission(
            model, inputs, len(inputs[0]), Future(), arrival_s, priority,
            None if deadline_s is None else arrival_s + deadline_s,
        )  # fmt: skip
        submission.future.set_running_or_notify_cancel()
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._closed or model.removed or len(model.waiting) < model.max_pending, timeout_s
            )
            self._check_open()
            if model.removed:
                raise SchedulerClosedError(f"model {name!r} was removed")
            if not room:
                model.account.rejected += 1
                raise QueueFullError(
                    f"{model.max_pending} requests for {name!r} are waiting and none began within "
                    f"{timeout_s} s; submit less, wait longer, or raise max_pending"
                )
            model.account.submitted += 1
            model.waiting.append(submission)
        self._begin_what_can()
        return submission.future

    def statistics(self) -> Statistics:
        """Counts, latencies, missed deadlines and the use of devices so far."""
        devices = self._engine.statistics()
        with self._changed:
            models = {name: model.account.statistics() for name, model in self._waiting.models.items()}
            return Statistics(models, devices, len(self._waiting), self._active)

    def graph(self, name: str) -> Any:
        """The `LayerGraph` of a model as it is run.

        Raises:
            KeyError: no model has that name.
        """
        with self._changed:
            return self._model(name).graph

    def drain(self) -> None:
        """Waits until everything submitted has ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._active and not len(self._waiting))

    def close(self) -> None:
        """Fails what is unfinished with SchedulerClosedError and ends the workers. May be called again."""
        with self._changed:
            self._closed = True
            left = [s for model in self._waiting.models.values() for s in model.waiting]
            for model in self._waiting.models.values():
                model.waiting.clear()
            self._changed.notify_all()
        for submission in left:
            self._settle(submission, None, SchedulerClosedError("the scheduler was closed"))
        self._engine.close()

    def __enter__(self) -> MultiModelScheduler:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if kind is None and not self._closed:
            self.drain()
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(
                "a MultiModelScheduler was not closed; use it in a with statement", ResourceWarning, 2
            )

    def _check_open(self) -> None:
        if self._closed:
            raise SchedulerClosedError("the scheduler is closed")

    def _model(self, name: str) -> Model:
        self._check_open()
        if not isinstance(name, str) or name not in self._waiting.models:
            raise KeyError(f"no model is named {name!r}; in service are {sorted(self._waiting.models)}")
        return self._waiting.models[name]

    def _begin_what_can(self) -> None:
        while True:
            with self._changed:
                if self._active >= self._max_active:
                    return
                batch = self._waiting.next_batch()
                if not batch:
                    return
                self._active += 1
                batch[0].model.running += 1
                batch[0].model.account.batches += 1
                self._changed.notify_all()
            error = self._begin(batch)
            if error is not None:
                self._settle_all(batch, None, error)

    def _begin(self, batch: list[Submission]) -> BaseException | None:
        model = batch[0].model

        def on_done(request: Request, outputs: Any, error: BaseException | None) -> None:
            self._settle_all(batch, outputs, error)
            self._begin_what_can()

        try:
            request = Request(
                next(self._numbers),
                model.graph,
                self._builder.tensors(join_inputs(batch)),
                min(s.arrival_s for s in batch),
                max(s.priority for s in batch),
                min((s.deadline_s for s in batch if s.deadline_s is not None), default=None),
                float(sum(s.examples for s in batch)),
                on_done,
            )
            self._engine.start(request)
        except BaseException as error:
            return error
        return None

    def _settle_all(self, batch: list[Submission], outputs: Any, error: BaseException | None) -> None:
        rows: list[Any] = [None] * len(batch)
        if error is None:
            try:
                arrays = tuple(output.numpy() for output in outputs)
                rows = [batch[0].model.pack(part) for part in split_outputs(batch, arrays)]
            except BaseException as raised:
                error = raised
        for submission, row in zip(batch, rows, strict=True):
            self._settle(submission, row, error)
        with self._changed:
            self._active -= 1
            batch[0].model.running -= 1
            self._changed.notify_all()

    def _settle(self, submission: Submission, result: Any, error: BaseException | None) -> None:
        with self._changed:
            submission.model.account.book(
                arrival_s=submission.arrival_s,
                end_s=time.monotonic(),
                deadline_s=submission.deadline_s,
                failed=error is not None,
            )
        if error is None:
            submission.future.set_result(result)
        else:
            submission.future.set_exception(error)


def _lanes(platform: Platform) -> int:
    """How many batches run side by side: on the GPUs, or where there is none on the cores."""
    counted = platform.of_kind("gpu") or tuple(platform.devices)
    return sum(device.slots for device in counted)
