"""Where a call of Keras's `fit` or `evaluate` goes: to Keras, or to a function to which it is routed.

Keras's methods stay the same objects, with their signatures. What they run inside is replaced while anything
is routed: so a call comes through here even if a library has stored Keras's method, to call it from one of
its own as loggers do. Routes are looked up on the thread that calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import keras

from overlap_train._keras import models as keras_models
from overlap_train._keras.callers import Route, entered, marked, routes_of

Handler: TypeAlias = Callable[..., Any]
"""Takes calls of all models' methods as `(original, model, name, *args, **kwargs)`, and does their work."""

_local = threading.local()
_lock = threading.Lock()
_users: dict[str, int] = {}
_originals: dict[str, Callable[..., Any]] = {}
# Each with the thread whose calls it takes, or None for all; the innermost are the last.
_handlers: list[tuple[Handler, threading.Thread | None]] = []
_NAMES = ("fit", "evaluate")


class Through:
    """Sends this thread's calls of Keras's own method of a model to another function."""

    def __init__(self, model: keras.Model, target: Callable[..., Any], name: str = "fit") -> None:
        self._route = Route(model, name, target)

    def __enter__(self) -> Route:
        _begin_routing(self._route.name)
        self._mark = marked(self._route)
        return self._route

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._mark.close()
        _end_routing(self._route.name)
        raised = self._route.error
        if raised is not None and raised[0] is error and error.__cause__ is not raised[1]:
            raise error from raised[1]


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
        routes = routes_of(self, name)
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
