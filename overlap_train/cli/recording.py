"""One run of a script, by Keras or overlapped, with what came of each `fit` and `evaluate` written down.

`main` gets DIRECTORY BY DETERMINISTIC SEED EPOCHS BATCHES SCRIPT [ARGUMENT ...], in a process of
`overlap-train verify`. BY is "keras", "overlap", or "operations" for overlapped with Keras's own; 0 epochs or
batches are as many as the script trains. The directory gets an `N.call` for each call, a pickled `Call`, and
at last `calls.json` with the calls' order: those of the main thread come first, then those of others.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import itertools
import json
import os
import pickle
import runpy
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import routes
from overlap_train._support.differences import Call
from overlap_train._support.imports import configured_backend, other_backend
from overlap_train._support.printing import error_text
from overlap_train._support.recorded import Hooks, note
from overlap_train.cli.script import as_main
from overlap_train.options.execution import with_own_operations
from overlap_train.options.validation import ValidationSet
from overlap_train.records import FitAccount
from overlap_train.routing import Routing
from overlap_train.trainer import Trainer


class _RefusedError(BaseException):
    """A script's training cannot be done by Keras. No `except Exception` of the script holds it up."""


class Recorder:
    """Takes the calls of `fit` and `evaluate`, has them done by Keras or by `Trainer`, and notes what came.

    Calls of any thread are taken, and those in hooks of others, all without a bar.
    """

    def __init__(self, directory: Path, by: str, *, epochs: int, batches: int) -> None:
        self._directory = directory
        self._epochs, self._batches = epochs, batches
        self._routing = Routing() if by != "keras" else None
        self._own_operations = by == "operations"
        self._local, self._numbers = threading.local(), itertools.count()
        self._threads: dict[threading.Thread, list[tuple[str, int]]] = {threading.main_thread(): []}
        self._error: str | None = None
        self._refused: str | None = None
        self._originals = {name: getattr(Trainer, name) for name in ("fit", "evaluate")}

    def run(self, script: str, arguments: list[str]) -> None:
        """Run a script as `python script` does. Threads that it leaves behind are listened to until `end`."""
        for name, original in self._originals.items():
            setattr(Trainer, name, self._method_of_trainer(name, original))
        routes.add_handler(self._handle, everywhere=True)
        try:
            with as_main(Path(script), arguments):
                runpy.run_path(os.path.abspath(script), run_name="__main__")
        except _RefusedError as refusal:
            self._refused = str(refusal)
        except SystemExit as end:
            self._error = None if end.code in (None, 0) else f"ended with {end.code}"
        except Exception as error:
            traceback.print_exc()
            self._error = error_text(error)

    def end(self) -> None:
        """Write down in which order calls were made, and how the script ended."""
        routes.remove_handler(self._handle, everywhere=True)
        for name, original in self._originals.items():
            setattr(Trainer, name, original)
        if configured_backend() != "tensorflow":  # which the script has set itself
            self._refused = other_backend(configured_backend())
        first, *others = self._threads.values()
        ordered = [number for calls in [first, *sorted(others)] for _, number in calls]
        record = {"calls": ordered, "error": self._error, "refused": self._refused}
        (self._directory / "calls.json").write_text(json.dumps(record))

    def _handle(
        self, original: Callable[..., Any], model: keras.Model, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Do a call of Keras's method; see `routes.Handler`."""
        if self._is_expected(model, name):
            return original(model, *args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._routing is None:
                return original(model, *args, **kwargs)
            self._local.expected = model, name
            return self._routing(original, model, name, *args, **kwargs)

        before = self._routing.trainer if self._routing is not None else None

        def messages() -> Sequence[str]:
            if self._routing is None:
                return ()
            trainer = self._routing.trainer
            if trainer is None or trainer is before:
                return ["in step: Keras did a fit that a warning names"]
            return trainer.messages

        return self._recorded(call, model, name, messages, args, kwargs)

    def _method_of_trainer(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)  # its signature is looked at
        def method(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
            if self._own_operations:
                trainer.execution = with_own_operations(trainer.execution, trainer.model)

            def call(*args: Any, **kwargs: Any) -> Any:
                kwargs.pop("resume", None)  # both runs begin anew
                self._local.expected = trainer.model, name
                if self._routing is not None:
                    return original(trainer, *args, **kwargs)
                _require_keras(trainer, name, kwargs.get("validation_data"))
                return getattr(trainer.model, name)(*args, **kwargs)

            if self._is_expected(trainer.model, name):
                return original(trainer, *args, **kwargs)
            result = self._recorded(call, trainer.model, name, lambda: trainer.messages, args, kwargs)
            if name == "fit":
                _tell_alike(trainer, result, overlapped=self._routing is not None)
            return result

        return method

    def _is_expected(self, model: keras.Model, name: str) -> bool:
        """Whether this is the next call of a method on this thread that a recorded one makes itself."""
        expected = getattr(self._local, "expected", None)
        if expected is None or expected[0] is not model or expected[1] != name:
            return False
        self._local.expected = None
        return True

    def _recorded(
        self,
        call: Callable[..., Any],
        model: keras.Model,
        name: str,
        messages: Callable[[], Sequence[str]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        hooks, depth = Hooks(), getattr(self._local, "depth", 0)
        arguments, callbacks = self._arguments(model, name, args, kwargs, hooks)
        noted = Call(name=name, within=depth > 0)
        number = next(self._numbers)
        self._threads.setdefault(threading.current_thread(), []).append((model.name, number))
        self._local.depth = depth + 1
        start_s, start_cpu_s, history = time.monotonic(), time.process_time(), None
        try:
            history = call(**arguments)
        except BaseException as error:
            noted.raised = error_text(error)
            raise
        finally:
            noted.seconds = time.monotonic() - start_s
            noted.cpu_seconds = time.process_time() - start_cpu_s
            self._local.depth, self._local.expected = depth, None
            note(noted, model, hooks, callbacks, history)
            if name == "fit":
                noted.messages = [*messages()]
            with (self._directory / f"{number}.call").open("wb") as file:
                pickle.dump(noted, file)
        return history

    def _arguments(
        self,
        model: keras.Model,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        hooks: Hooks,
    ) -> tuple[dict[str, Any], list[Any]]:
        """Return a call's arguments by name, shortened, and the script's callbacks."""
        try:
            arguments = _by_name(getattr(Trainer, name), args, kwargs)
        except TypeError:  # for a method of the user's, which may have arguments of its own
            arguments = _by_name(getattr(type(model), name), args, kwargs)
        arguments["verbose"] = 0  # what a script prints itself is compared
        callbacks = arguments.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            listed = list(callbacks.callbacks)
        else:
            listed = list(keras.tree.flatten(callbacks)) if callbacks is not None else []
            if listed:  # a training without callbacks goes another way
                arguments["callbacks"] = [*listed, hooks]
        if self._epochs and name == "fit":
            first = arguments.get("initial_epoch", 0)
            arguments["epochs"] = min(arguments.get("epochs", 1), first + self._epochs)
        if self._batches:
            _shorten(arguments, name, self._batches)
        return arguments, listed


def _by_name(method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method by their names."""
    signature = inspect.signature(method)
    arguments = dict(signature.bind(None, *args, **kwargs).arguments)
    del arguments[next(iter(signature.parameters))]
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name, {})
    return arguments


def _tell_alike(trainer: Trainer, history: Any, *, overlapped: bool) -> None:
    """Have a script read the same of both runs where it asks what Keras does not tell."""
    ended = trainer.ended if overlapped else "stopped" if trainer.model.stop_training else "completed"
    outcome = type(trainer._outcome)(ended=ended, account=FitAccount(0.0, 0.0))
    trainer._outcome = outcome
    history.ended, history.accounts, history.account = ended, outcome.accounts, outcome.account


def _shorten(arguments: dict[str, Any], name: str, batches: int) -> None:
    """Leave a call so many batches of training and validation data."""
    size = arguments.get("batch_size") or 32

    def first(value: Any, rows: int) -> Any:
        if isinstance(value, tf.data.Dataset):
            return value.take(batches)
        leaves = [leaf for leaf in keras.tree.flatten(value) if leaf is not None]
        if not all(hasattr(leaf, "shape") and not isinstance(leaf, tf.SparseTensor) for leaf in leaves):
            return value
        return keras.tree.map_structure(lambda array: None if array is None else array[:rows], value)

    x = arguments.get("x")
    for key in ("x", "y", "sample_weight"):
        arguments[key] = first(arguments.get(key), batches * size)
    steps = "steps_per_epoch" if name == "fit" else "steps"
    if arguments["x"] is x or arguments.get(steps):  # its length is not ours to change
        arguments[steps] = min(arguments.get(steps) or batches, batches)
    if arguments.get("validation_data") is not None:
        rows = batches * (arguments.get("validation_batch_size") or size)
        data = arguments["validation_data"]
        arguments["validation_data"] = first(data, rows)
        if arguments["validation_data"] is data or arguments.get("validation_steps"):
            arguments["validation_steps"] = min(arguments.get("validation_steps") or batches, batches)


def _require_keras(trainer: Trainer, name: str, validation_data: Any) -> None:
    """End the script where Keras cannot do what its trainer does."""
    extras = trainer._settings().beyond_keras(trains=name == "fit")
    if isinstance(validation_data, (ValidationSet, Mapping)):
        extras.append("sets by name")
    if extras:
        raise _RefusedError(f"{type(trainer).__name__}.{name} asks for what Keras lacks: {extras[0]}")


def main(arguments: list[str]) -> None:
    """Seed the generators, run the script, and write down what it did."""
    directory, by, deterministic, seed, epochs, batches, script, *rest = arguments
    keras.utils.set_random_seed(int(seed))
    if int(deterministic):
        tf.config.experimental.enable_op_determinism()
    recorder = Recorder(Path(directory), by, epochs=int(epochs), batches=int(batches))
    atexit.register(recorder.end)  # behind the script's threads, and what it registers itself
    recorder.run(script, rest)
