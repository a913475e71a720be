"""Where a model has a `fit` of its own: what that passes on to Keras's `fit` comes to the trainer.

Keras's method is replaced while any call is routed, for all threads, by one that looks whether the calling
thread has routed this very model; any other call goes on as before. The signature stays Keras's.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from overlap_train import _keras

__all__ = ["Route", "entered", "is_within", "through"]


@dataclass
class Route:
    """One routed call.

    Attributes:
        model: whose method is routed.
        name: of the method.
        target: called in its place.
        used: whether it has been.
    """

    model: keras.Model
    name: str
    target: Callable[..., Any]
    used: bool = False


_local = threading.local()
_lock = threading.Lock()
_counts: dict[tuple[type, str], int] = {}


def is_within(model: keras.Model, name: str) -> bool:
    """Whether a method of the model's own class is running, on this thread, and has called us."""
    if any(route.model is model and route.name == name for route in getattr(_local, "routes", ())):
        return True  # called again by what we have called
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        named = code.co_name == name and code.co_varnames[:1] and not _is_ours(frame.f_globals)
        if named and frame.f_locals.get(code.co_varnames[0]) is model:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def through(model: keras.Model, target: Callable[..., Any], name: str = "fit") -> Iterator[Route]:
    """Sends what this thread passes on to Keras's own method of a model to another function."""
    route = Route(model, name, target)
    stack: list[Route] = _local.__dict__.setdefault("routes", [])
    owner = _keras_owner(model, name)
    _install(owner, name)
    stack.append(route)
    try:
        yield route
    finally:
        stack.remove(route)
        _uninstall(owner, name)


@contextlib.contextmanager
def entered(model: keras.Model, name: str) -> Iterator[None]:
    """Marks that a method of the model's own is about to be called by us, so that it is not called again."""
    route = Route(model, name, lambda: None, used=True)
    stack: list[Route] = _local.__dict__.setdefault("routes", [])
    stack.append(route)
    try:
        yield
    finally:
        stack.remove(route)


def _keras_owner(model: keras.Model, name: str) -> type:
    """Returns the class of Keras's whose method a subclass's `super()` finds."""
    kinds = [kind for kind in type(model).__mro__ if name in vars(kind)]
    return next(kind for kind in kinds if _keras.is_keras_class(kind))


def _install(owner: type, name: str) -> None:
    with _lock:
        count = _counts.get((owner, name), 0)
        _counts[owner, name] = count + 1
        if not count:
            setattr(owner, name, _routed(vars(owner)[name], name))


def _uninstall(owner: type, name: str) -> None:
    with _lock:
        _counts[owner, name] -= 1
        present = vars(owner)[name]
        # Somebody else may have put a method of theirs around ours meanwhile; then ours lets all calls pass.
        if not _counts[owner, name] and getattr(present, "_overlap_train_original", None) is not None:
            setattr(owner, name, present._overlap_train_original)


def _routed(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        for route in reversed(getattr(_local, "routes", ())):
            if route.model is self and route.name == name and not route.used:
                route.used = True
                return route.target(*args, **kwargs)
        return original(self, *args, **kwargs)

    method._overlap_train_original = original  # type: ignore[attr-defined]
    return method


def _is_ours(variables: dict[str, Any]) -> bool:
    return str(variables.get("__name__", "")).split(".")[0] == "overlap_train"
