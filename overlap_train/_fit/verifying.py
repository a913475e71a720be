"""`Trainer.verify`: one fit by Keras and overlapped, in this process, and where they differ."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._fit.explaining import build_to_look
from overlap_train._fit.program_state import ProgramState
from overlap_train._fit.request import make_request
from overlap_train._keras import evaluation as keras_evaluation
from overlap_train._keras import routes
from overlap_train._keras.copies import preserved_state
from overlap_train._keras.names import can_convert_arrays
from overlap_train._support.arguments import short_repr
from overlap_train._support.differences import Call, Difference, differences_of, different_calls, judge
from overlap_train._support.printing import error_text
from overlap_train._support.recorded import Hooks, note
from overlap_train._training.settings import TrainerSettings
from overlap_train.options.validation import ValidationSet
from overlap_train.records import Verification

_SEED = 1
_TOLERANCE = 1e-4  # as of `overlap-train verify`


def verify_fit(
    settings: TrainerSettings,
    arguments: Mapping[str, Any],
    fit: Callable[..., Any],
    fit_with_own: Callable[..., Any],
    said: Callable[[], Any],
) -> Verification:
    """Run one fit by Keras and by `fit`, from the same state, and compare them. On the calling thread.

    `fit_with_own` does the same by Keras's own operations; `said` returns the messages of the last `fit`.
    """
    _require_twice(settings, arguments)
    arguments = {**arguments, "verbose": 0}
    model, runs = settings.model, dict[str, _Fit]()
    with contextlib.closing(_Verifier(settings, arguments)) as verifier:
        runs["keras"] = verifier.run(_by_keras(model))
        if isinstance(runs["keras"].error, Exception):
            raise runs["keras"].error
        runs["overlap"] = verifier.run(fit)
        messages = [text for text in said() if "in step" in text]

        def varying(by: str) -> Iterator[Difference]:
            again = verifier.run({"keras": _by_keras(model), "overlap": fit}.get(by, fit_with_own))
            return _differences(runs["overlap" if by == "overlap" else "keras"], again)

        unequal = list(_differences(runs["keras"], runs["overlap"]))
        judgement = judge(unequal, varying, tolerance=_TOLERANCE)
    return Verification(
        equal=judgement.value in ("equal", "rounding"),
        verdict=judgement.text,
        differences=tuple(judgement.wrong or judgement.counted),
        messages=tuple(messages),
        keras_s=runs["keras"].seconds,
        overlapped_s=runs["overlap"].seconds,
    )


def _by_keras(model: keras.Model) -> Callable[..., Any]:
    def fit(*, resume: None, **arguments: Any) -> Any:
        with routes.suspended():
            return model.fit(**arguments)

    return fit


def _require_twice(settings: TrainerSettings, arguments: Mapping[str, Any]) -> None:
    """Raise an exception if Keras cannot do such a fit, or if it cannot be done twice."""
    extras = settings.beyond_keras(arguments["resume"])
    if isinstance(arguments["validation_data"], (ValidationSet, Mapping)):
        extras.append("sets by name")
    if extras:
        raise ValueError(f"verify compares with keras.Model.fit, which has no {extras[0]}; leave it out")
    for name in ("x", "validation_data"):
        if isinstance(arguments[name], Iterator):
            raise ValueError(
                f"verify trains twice, and {name} is {short_repr(arguments[name])}, which gives its batches "
                "once; pass arrays, a tf.data.Dataset or a keras.utils.PyDataset, or run overlap-train verify"
            )
    if isinstance(arguments["callbacks"], keras.callbacks.CallbackList):
        raise TypeError("verify adds a callback; pass yours in a list instead of a CallbackList")


@dataclass(kw_only=True)
class _Fit(Call):
    """What one fit did."""

    error: Exception | None = None


def _differences(first: _Fit, second: _Fit) -> Iterator[Difference]:
    """Yield where two fits differ, in the order in which it happened."""
    yield from different_calls("fit", first, second)
    errors = (None if run.error is None else error_text(run.error) for run in (first, second))
    yield from differences_of("error", *errors)


class _Verifier:
    """Runs fits that begin alike; when it is closed, the program is as it was."""

    def __init__(self, settings: TrainerSettings, arguments: Mapping[str, Any]) -> None:
        self._model, self._arguments = settings.model, arguments
        given = arguments["callbacks"]
        self._callbacks = list(keras.tree.flatten(given)) if given is not None else []
        data = [arguments[name] for name in ("x", "y", "sample_weight", "validation_data")]
        # Only code that can reach an array changes it, and leads to it.
        sources = [each for each in keras.tree.flatten(data) if not can_convert_arrays(each)]
        keras_evaluation.forget_iterator(self._model)
        with preserved_state():
            before = ProgramState([self._model, *self._callbacks, *sources])
            try:
                with contextlib.ExitStack() as resources:
                    parts, _ = build_to_look(make_request(settings, **arguments), resources)
                    # The traces also know variables of libraries' objects.
                    traced = ProgramState((), parts.state.variables)
            finally:
                before.put_back()
        self._states = (traced, before)

    def close(self) -> None:
        """Put all back. Idempotent."""
        for state in self._states:
            state.put_back()

    def run(self, fit: Callable[..., Any]) -> _Fit:
        """Run a fit from the beginning."""
        self.close()
        noted, hooks, history = _Fit(), Hooks(), None
        with preserved_state():
            random.seed(_SEED)
            np.random.seed(_SEED)
            tf.random.set_seed(_SEED)
            start_s = time.monotonic()
            try:
                history = fit(**{**self._arguments, "callbacks": [*self._callbacks, hooks]})
            except Exception as error:
                noted.error = error
            noted.seconds = time.monotonic() - start_s
        if str(getattr(history, "ended", "")).startswith("interrupted"):
            raise KeyboardInterrupt
        note(noted, self._model, hooks, self._callbacks, history)
        return noted
