"""Who calls `fit` or `evaluate`: a model's own method, a library, or what these have called in turn.

Each thread has a stack of the calls that have been routed (`routes`) or that we make ourselves.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import keras

from overlap_train._keras import models as keras_models

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Route:
    """One routed call."""

    model: keras.Model
    name: str
    target: Callable[..., Any]  # called in place of the method
    busy: bool = False  # the target runs: what it calls is Keras's own
    # What the target raised, and its cause, which Keras takes away.
    error: tuple[BaseException, BaseException | None] | None = None
    handled: bool = False  # by a `routes.Handler` of all models' calls


_local = threading.local()


def dispatches_to_model(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for the trainer's `fit` or `evaluate`, for models with one of their own.

    If that has not called us, `_{name}_by_model` is called, with the arguments unchanged.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
            trainer: Any = args[0]
            if keras_models.is_replaced(trainer.model, name) and not is_within(trainer.model, name):
                result: R = getattr(trainer, f"_{name}_by_model")(*args[1:], **kwargs)
                return result
            return method(*args, **kwargs)

        return dispatch

    return decorate


def is_within(model: keras.Model, name: str) -> bool:
    """Whether a method of the model's own class is running on this thread, and has called us."""
    if routes_of(model, name):
        return True  # called again by what we have called
    codes = keras_models.codes_of(model, name)  # a function of a script may have the same name as the method
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code in codes and code.co_varnames[:1] and frame.f_locals.get(code.co_varnames[0]) is model:
            return True
        frame = frame.f_back
    return False


def entered(model: keras.Model, name: str, *, handled: bool = False) -> contextlib.ExitStack:
    """Mark that we are about to call the model's own method, or with `handled` a `routes.Handler`, once."""
    return marked(Route(model, name, lambda: None, busy=True, handled=handled))


def marked(route: Route) -> contextlib.ExitStack:
    """Put a route on this thread's stack, until the result is closed."""
    stack: list[Route] = _local.__dict__.setdefault("routes", [])
    stack.append(route)
    undo = contextlib.ExitStack()
    undo.callback(stack.remove, route)
    return undo


def is_routed(model: keras.Model, name: str) -> bool:
    """Whether a `routes.Handler` is doing the work of a call of Keras's method on this thread."""
    return any(route.handled for route in routes_of(model, name))


def routes_of(model: keras.Model, name: str) -> list[Route]:
    """Return the routes of this thread for a method of a model, the innermost last."""
    routes = getattr(_local, "routes", ())
    return [route for route in routes if route.model is model and route.name == name]
