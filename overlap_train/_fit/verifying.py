"""`Trainer.verify`: one fit by Keras and overlapped, in this process, and where they differ."""

from __future__ import annotations

import contextlib
import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._data.feed import Feed
from overlap_train._data.iterator_feed import IteratorFeed
from overlap_train._fit.explaining import explain_fit
from overlap_train._fit.own_methods import beyond_keras
from overlap_train._fit.request import make_request
from overlap_train._keras import models as keras_models
from overlap_train._keras import randomness, routes
from overlap_train._keras.copies import preserved_state
from overlap_train._keras.optimizers import build_optimizer
from overlap_train._support.arguments import short_repr
from overlap_train._support.differences import Difference, differences_of, different_calls, judge
from overlap_train._support.printing import error_text
from overlap_train._support.recorded import Hooks, array_of, plain, states, variables_of
from overlap_train._training.settings import TrainerSettings
from overlap_train.options.validation import ValidationSet
from overlap_train.records import Verification

_SEED = 1
_TOLERANCE = 1e-4  # as of `overlap-train verify`


def verify_fit(
    settings: TrainerSettings, arguments: Mapping[str, Any], fit: Callable[..., Any], said: Callable[[], Any]
) -> Verification:
    """Run one fit by Keras and by `fit`, from the same state, and compare them. On the calling thread.

    `said` returns the messages of the last `fit`.
    """
    _require_twice(settings, arguments)
    arguments = {**arguments, "verbose": 0}
    request = make_request(settings, **arguments)
    model = settings.model
    if not model.built:
        explain_fit(request)
        request = make_request(settings, **arguments)
    runs: dict[str, _Run] = {}
    with _Verifier(model, arguments, request.feed) as verifier:
        runs["keras"] = verifier.run(_by_keras(model))
        if isinstance(runs["keras"].error, Exception):
            raise runs["keras"].error
        runs["overlap"] = verifier.run(fit)
        messages = [text for text in said() if "in step" in text]

        def varying(by: str) -> Iterator[Difference]:
            return _differences(runs[by], verifier.run(_by_keras(model) if by == "keras" else fit))

        unequal = list(_differences(runs["keras"], runs["overlap"]))
        judgement = judge(unequal, varying, tolerance=_TOLERANCE)
    left_out = {difference.place for difference in judgement.varying}
    return Verification(
        equal=judgement.value in ("equal", "rounding"),
        verdict=judgement.text,
        differences=tuple(judgement.wrong or [d for d in unequal if d.place not in left_out]),
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
    extras = beyond_keras(settings, arguments["resume"])
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
        raise TypeError("verify copies callbacks; pass them in a list instead of a CallbackList")


@dataclass
class _Run:
    """What one fit did."""

    record: Mapping[str, Any]
    variables: Sequence[np.ndarray]
    seconds: float
    error: Exception | None = None


def _differences(first: _Run, second: _Run) -> Iterator[Difference]:
    """Yield where two fits differ, in the order in which it happened."""
    yield from different_calls("fit", first.record, second.record, first.variables, second.variables)
    errors = (None if run.error is None else error_text(run.error) for run in (first, second))
    yield from differences_of("error", *errors)


class _Verifier:
    """Runs fits that begin alike; when it is left, the model is as it was."""

    def __init__(self, model: keras.Model, arguments: Mapping[str, Any], feed: Feed) -> None:
        self._model, self._arguments = model, arguments
        self._attributes = {name: getattr(model, name, None) for name in ("stop_training", "history")}
        # Shuffles of a dataset go on drawing from where an iterator before has left them.
        self._feed = feed if isinstance(feed, IteratorFeed) and feed.rewindable else None
        with model.distribute_strategy.scope():
            build_optimizer(model)
        optimizers = [each for each in vars(model).values() if isinstance(each, keras.optimizers.Optimizer)]
        of_model = [*model.variables, *(v for each in optimizers for v in each.variables)]
        variables = {id(v): v for v in (*of_model, *randomness.global_variables())}.values()
        self._before = [(variable, np.copy(variable)) for variable in variables]

    def __enter__(self) -> _Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        for name, value in self._attributes.items():
            setattr(self._model, name, value)
        if self._feed is not None:
            self._feed.close()

    def run(self, fit: Callable[..., Any]) -> _Run:
        """Run a fit from the beginning."""
        self._restore()
        hooks, callbacks = Hooks(), self._copied_callbacks()
        arguments = {**self._arguments, "callbacks": [*callbacks, hooks]}
        arguments |= {name: _copied_data(arguments[name]) for name in ("x", "validation_data")}
        history, failure = None, None
        with preserved_state():
            _seed()
            if self._feed is not None:
                self._feed.new_pass()
                self._feed.rewind(0)
            start_s = time.monotonic()
            try:
                history = fit(**arguments)
            except Exception as error:
                failure = error
            seconds = time.monotonic() - start_s
        if str(getattr(history, "ended", "")).startswith("interrupted"):
            raise KeyboardInterrupt
        variables = variables_of(self._model)
        record = {
            "hooks": hooks.calls,
            "callbacks": states(callbacks),
            "result": plain(getattr(history, "history", None)),
            "variables": [variable.path for variable in variables],
        }
        return _Run(record, list(map(array_of, variables)), seconds, failure)

    def _restore(self) -> None:
        with self._model.distribute_strategy.scope():
            for variable, value in self._before:
                variable.assign(value)
        self._model.reset_metrics()

    def _copied_callbacks(self) -> list[keras.callbacks.Callback]:
        """Return copies of the callbacks that have the model itself, and no copy of it."""
        given = self._arguments["callbacks"]
        listed = list(keras.tree.flatten(given)) if given is not None else []
        shared = [self._model, *keras_models.flat_layers(self._model), *(v for v, _ in self._before)]
        if getattr(self._model, "optimizer", None) is not None:
            shared.append(self._model.optimizer)
        memo = {id(each): each for each in shared}
        copies = []
        for callback in listed:
            try:
                copies.append(copy.deepcopy(callback, memo))
            except Exception as error:
                raise TypeError(
                    f"verify gives each run a copy of every callback, and {type(callback).__name__} cannot "
                    f"be copied ({error_text(error)}); leave it out, or run overlap-train verify"
                ) from error
        return copies


def _seed() -> None:
    random.seed(_SEED)
    np.random.seed(_SEED)
    tf.random.set_seed(_SEED)


def _copied_data(data: Any) -> Any:
    """Return a copy of what changes its order as it is read, if it can be copied."""
    if isinstance(data, keras.utils.PyDataset):
        with contextlib.suppress(Exception):
            return copy.deepcopy(data)
    return data
