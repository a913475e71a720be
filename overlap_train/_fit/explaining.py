"""What a `fit` would do: built as it would be run, traced, and taken apart again. On the calling thread."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import keras

from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.batches import size_bytes
from overlap_train._data.cursor import Cursor
from overlap_train._fit.build import FitBuilder, FitParts
from overlap_train._fit.course import FitOutcome
from overlap_train._fit.request import FitRequest, make_callback_list
from overlap_train._fit.step_building import look_only
from overlap_train._support.reasons import Reason
from overlap_train.monitoring.quiet import QuietProgress
from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.records import Explanation


def explain_fit(request: FitRequest) -> Explanation:
    """Builds a fit as it would be run, traces it, and takes it apart again. On the calling thread."""
    start_s = time.monotonic()
    with contextlib.ExitStack() as resources:
        parts, steps = build_to_look(request, resources)
        return _explanation(request, parts, steps, time.monotonic() - start_s)


def build_to_look(request: FitRequest, resources: contextlib.ExitStack) -> tuple[FitParts, int | None]:
    """Builds and traces a fit until `resources` are closed; returns its parts and the steps of an epoch."""
    settings = dataclasses.replace(request.settings, recorder=SpanRecorder(0))  # the timeline is of fits
    request = dataclasses.replace(request, settings=settings, checkpoints=None, verbose=0)
    resources.callback(request.feed.close)
    look_only(request, resources)
    cursor = Cursor(request.feed, request.steps_per_epoch, tells=False)
    steps = cursor.steps_per_epoch
    progress = resources.enter_context(QuietProgress())
    callbacks = make_callback_list(request.callbacks)  # whose model is not set
    builder = FitBuilder(request, cursor, callbacks, progress, resources, FitOutcome(), looks_only=True)
    return builder.build(), steps


def _explanation(request: FitRequest, parts: FitParts, steps: int | None, seconds: float) -> Explanation:
    messages, lag = parts.training.progress.messages, parts.deliveries.backlog.max_lag
    validates = bool(parts.deliveries.suite)
    arrays = keras.tree.flatten(request.feed.tensors) if isinstance(request.feed, ArrayFeed) else []
    plan = next((text.removeprefix("plan: ") for text in messages if text.startswith("plan: ")), "")
    return Explanation(
        validates=validates,
        max_lag=lag,
        reasons=parts.reasons or (Reason.of("lag-zero"),) if validates and not lag else (),
        plan=plan,
        steps_per_epoch=steps,
        workers=request.settings.validation.resolved_workers,
        snapshot_bytes=sum(map(size_bytes, parts.state.read().flat())),
        data_bytes=sum(map(size_bytes, arrays)),
        tracing_s=seconds,
        messages=tuple(messages),
    )
