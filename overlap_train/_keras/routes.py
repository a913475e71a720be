"""Where a call of Keras's `fit` or `evaluate` goes: to Keras, or to a function to which it is routed.

Keras's methods stay the same objects, with their signatures. What they run inside is replaced while anything
is routed: so a call comes through here even if a library has stored Keras's method, to call it from one of
its own as loggers do. Routes are looked up on the thread that calls.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

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
    handled: bool = False  # by a `Handler` of all models' calls


class Handler(Protocol):
    """Takes calls of the methods of all models."""

    def __call__(
        self, original: Callable[..., Any], model: keras.Model, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Do the work of the call; `original` is Keras's method."""


_local = threading.local()
_lock = threading.Lock()
_users: dict[str, int] = {}
_originals: dict[str, Callable[..., Any]] = {}
# Each with the thread whose calls it takes, or None for all; the innermost are the last.
_handlers: list[tuple[Handler, threading.Thread | None]] = []
_NAMES = ("fit", "evaluate")


def is_within(model: keras.Model, name: str) -> bool:
    """Whether a method of the model's own class is running on this thread, and has called us."""
    if _routes_of(model, name):
        return True  # called again by what we have called
    codes = keras_models.codes_of(model, name)  # a function of a script may have the same name as the method
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code in codes and code.co_varnames[:1] and frame.f_locals.get(code.co_varnames[0]) is model:
            return True
        frame = frame.f_back
    return False


class Through:
    """Sends this thread's calls of Keras's own method of a model to another function."""

    def __init__(self, model: keras.Model, target: Callable[..., Any], name: str = "fit") -> None:
        self._route = Route(model, name, target)

    def __enter__(self) -> Route:
        _begin_routing(self._route.name)
        self._mark = _marked(self._route)
        return self._route

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._mark.close()
        _end_routing(self._route.name)
        raised = self._route.error
        if raised is not None and raised[0] is error and error.__cause__ is not raised[1]:
            raise error from raised[1]


def entered(model: keras.Model, name: str, *, handled: bool = False) -> contextlib.ExitStack:
    """Mark that we are about to call the model's own method, or with `handled` a `Handler`, only once."""
    return _marked(Route(model, name, lambda: None, busy=True, handled=handled))


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


def is_routed(model: keras.Model, name: str) -> bool:
    """Whether a `Handler` is doing the work of a call of Keras's method on this thread."""
    return any(route.handled for route in _routes_of(model, name))


def suspended() -> contextlib.ExitStack:
    """Send this thread's calls to Keras, whatever is routed."""
    undo = contextlib.ExitStack()
    keras_models.set_until(undo, _local, "suspended", True)
    return undo


def add_handler(handler: Handler, *, everywhere: bool) -> None:
    """Route the methods of all models: on this thread, or on all."""
    for name in _NAMES:
        _begin_routing(name)
    with _lock:
        _handlers.append((handler, None if everywhere else threading.current_thread()))


def remove_handler(handler: Handler, *, everywhere: bool) -> None:
    """End what `add_handler` began; any thread may do so, as where a generator is closed by another."""
    with _lock:
        # Equal, not the same: a bound method is made anew each time it is asked for.
        pairs = [(other, thread) for other, thread in _handlers if other == handler]
        thread = threading.current_thread()
        mine = [pair for pair in pairs if pair[1] is (None if everywhere else thread)]
        _handlers.remove((mine or pairs)[-1])
    for name in _NAMES:
        _end_routing(name)


def _marked(route: Route) -> contextlib.ExitStack:
    stack: list[Route] = _local.__dict__.setdefault("routes", [])
    stack.append(route)
    undo = contextlib.ExitStack()
    undo.callback(stack.remove, route)
    return undo


def _routes_of(model: keras.Model, name: str) -> list[Route]:
    """Return the routes of this thread for a method of a model, the innermost last."""
    routes = getattr(_local, "routes", ())
    return [route for route in routes if route.model is model and route.name == name]


def _begin_routing(name: str) -> None:
    """Send the calls of Keras's method here, if they do not come yet."""
    with _lock:
        if not _users.get(name):
            cell = keras_models.method_cell(name)
            _originals[name] = cell.cell_contents
            cell.cell_contents = _routed(cell.cell_contents, name)
        _users[name] = _users.get(name, 0) + 1


def _end_routing(name: str) -> None:
    """Restore Keras's method, if no call is routed any more."""
    with _lock:
        _users[name] -= 1
        if not _users[name]:
            keras_models.method_cell(name).cell_contents = _originals.pop(name)


def _routed(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        routes = _routes_of(self, name)
        for route in reversed(routes):
            if not route.busy:
                return _call_target(route, *args, **kwargs)
        handler = _handler()
        # The private argument marks the `evaluate` of Keras's own `fit`.
        if handler is None or routes or "_use_cached_eval_dataset" in kwargs:
            return original(self, *args, **kwargs)
        with entered(self, name, handled=True):
            return handler(original, self, name, *args, **kwargs)

    return method


def _call_target(route: Route, *args: Any, **kwargs: Any) -> Any:
    route.busy = True
    try:
        return route.target(*args, **kwargs)
    except Exception as error:
        route.error = error, error.__cause__
        raise
    finally:
        route.busy = False


def _handler() -> Handler | None:
    """Return the innermost handler of this thread, or else of all threads, or None."""
    if getattr(_local, "suspended", False):
        return None
    handlers = _handlers[::-1]  # which another thread may change
    for thread in (threading.current_thread(), None):
        for handler, of_thread in handlers:
            if of_thread is thread:
                return handler
    return None
