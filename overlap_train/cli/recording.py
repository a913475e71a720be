"""One run of a script, by Keras or overlapped, with what came of each `fit` and `evaluate` written down.

`python -m overlap_train.cli.recording DIRECTORY BY SEED EPOCHS BATCHES SCRIPT [ARGUMENT ...]` is a process of
`overlap-train verify`. BY is "keras" or "overlap"; 0 epochs or batches are as many as the script trains. The
directory gets `calls.json`, and for the call N of `fit` an `N.npz` with the variables behind it, in order.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import routes
from overlap_train._support.printing import error_text
from overlap_train._support.recorded import Hooks, array_of, plain, states, variables_of
from overlap_train.cli.script import as_main
from overlap_train.options.validation import ValidationSet
from overlap_train.routing import Routing
from overlap_train.trainer import Trainer

__all__ = ["main"]


class _RefusedError(BaseException):
    """A script's training cannot be done by Keras. No `except Exception` of the script holds it up."""


class Recorder:
    """Takes the outermost calls of `fit` and `evaluate`, has them done, and notes what came of them."""

    def __init__(self, directory: Path, *, overlap: bool, epochs: int, batches: int) -> None:
        self._directory = directory
        self._epochs, self._batches = epochs, batches
        self._routing = Routing() if overlap else None
        self._within = False
        self._calls: list[dict[str, Any]] = []
        self._error: str | None = None
        self._refused: str | None = None

    def run(self, script: str, arguments: list[str]) -> None:
        """Run a script as `python script` does, and write down what it did."""
        originals = {name: getattr(Trainer, name) for name in ("fit", "evaluate")}
        for name, original in originals.items():
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
        finally:
            routes.remove_handler(self._handle, everywhere=True)
            for name, original in originals.items():
                setattr(Trainer, name, original)
        record = {"calls": self._calls, "error": self._error, "refused": self._refused}
        (self._directory / "calls.json").write_text(json.dumps(record))

    def _handle(
        self, original: Callable[..., Any], model: keras.Model, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Do a call of Keras's method; see `routes.Handler`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._routing is None:
                return original(model, *args, **kwargs)
            return self._routing(original, model, name, *args, **kwargs)

        def trainer() -> Trainer | None:
            return self._routing.trainer if self._routing is not None else None

        return self._recorded(call, model, name, trainer, args, kwargs)

    def _method_of_trainer(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)  # its signature is looked at
        def method(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                kwargs.pop("resume", None)  # both runs begin anew
                if self._routing is not None:
                    return original(trainer, *args, **kwargs)
                _require_keras(trainer, name, kwargs.get("validation_data"))
                with routes.suspended():
                    return getattr(trainer.model, name)(*args, **kwargs)

            if self._within:
                return original(trainer, *args, **kwargs)
            return self._recorded(call, trainer.model, name, lambda: trainer, args, kwargs)

        return method

    def _recorded(
        self,
        call: Callable[..., Any],
        model: keras.Model,
        name: str,
        trainer: Callable[[], Trainer | None],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if self._within:  # by a callback, or by the library itself
            return call(*args, **kwargs)
        hooks = Hooks()
        arguments, callbacks = self._arguments(model, name, args, kwargs, hooks)
        record: dict[str, Any] = {"name": name, "model": model.name}
        self._calls.append(record)
        self._within = True
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        try:
            result = call(**arguments)
        finally:
            self._within = False
            record["seconds"] = time.monotonic() - start_s
            record["cpu_seconds"] = time.process_time() - start_cpu_s
            record["hooks"] = hooks.calls
            record["callbacks"] = states(callbacks)
            used = trainer()
            record["messages"] = list(used.messages) if used is not None and name == "fit" else []
            if name == "fit":
                variables = variables_of(model)
                record["variables"] = [variable.path for variable in variables]
                values = map(array_of, variables)
                np.savez(self._directory / f"{len(self._calls) - 1}.npz", *values)
        record["result"] = plain(getattr(result, "history", result))
        return result

    def _arguments(
        self,
        model: keras.Model,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        hooks: Hooks,
    ) -> tuple[dict[str, Any], list[Any]]:
        """Return a call's arguments by name, shortened, and the script's callbacks."""
        arguments = inspect.signature(getattr(Trainer, name)).bind(None, *args, **kwargs).arguments
        arguments = {key: value for key, value in arguments.items() if key != "self"}
        arguments["verbose"] = 0  # what a script prints itself is compared
        callbacks = arguments.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            listed = list(callbacks.callbacks)
        else:
            listed = list(keras.tree.flatten(callbacks)) if callbacks is not None else []
            arguments["callbacks"] = [*listed, hooks]
        if self._epochs and name == "fit":
            first = arguments.get("initial_epoch", 0)
            arguments["epochs"] = min(arguments.get("epochs", 1), first + self._epochs)
        if self._batches:
            _shorten(arguments, name, self._batches)
        return arguments, listed


def _shorten(arguments: dict[str, Any], name: str, batches: int) -> None:
    """Leave a call so many batches of training and validation data."""
    size = arguments.get("batch_size") or 32

    def first(value: Any, rows: int) -> Any:
        if isinstance(value, tf.data.Dataset):
            return value.take(batches)
        if not all(hasattr(leaf, "shape") for leaf in keras.tree.flatten(value) if leaf is not None):
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
    settings = trainer._settings()
    policy = settings.validation
    own = not settings.stock_validation or settings.preprocess is not None or bool(policy.functions)
    named = isinstance(validation_data, (ValidationSet, Mapping))
    if own or named or (name == "fit" and (not settings.stock or policy.every_steps is not None)):
        raise _RefusedError(f"{type(trainer).__name__}.{name} does what keras.Model.{name} cannot do")


def main(arguments: list[str]) -> None:
    """Seed the generators, run the script, and write down what it did."""
    directory, by, seed, epochs, batches, script, *rest = arguments
    keras.utils.set_random_seed(int(seed))
    recorder = Recorder(Path(directory), overlap=by == "overlap", epochs=int(epochs), batches=int(batches))
    recorder.run(script, rest)


if __name__ == "__main__":
    main(sys.argv[1:])
