"""An evaluation function in a process of its own: the parent's half; `function_server` is the child's.

The parent sends the values of the model's variables and its attributes, the child answers with what the
function returned. This half belongs to the function's thread, but for `close`; a process that has died, or
that was killed because nobody waits for it any more, is started again for the next snapshot.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import keras

from overlap_train._keras import models as keras_models
from overlap_train._keras import thread_settings
from overlap_train._snapshot import ModelState, Values
from overlap_train._support.arguments import shown
from overlap_train._support.closing import Closing
from overlap_train._validation.attributes import Attributes, is_stock
from overlap_train._validation.computations import CopyRefusedError, digest_of
from overlap_train._validation.function_server import READY, Request, Served, Settings, serve_function
from overlap_train._validation.private_model import custom_objects, places_of
from overlap_train.options.functions import EvaluationFunction

__all__ = ["FunctionProcess", "TrainedModel"]

_END_S = 5.0
# A process that takes longer to import and to make its model counts as one that hangs.
_LONGEST_START_S = 300.0


@dataclass(frozen=True)
class TrainedModel:
    """What a process has to be told of the model that is trained.

    Attributes:
        model: built and compiled.
        x_spec: nested `tf.TensorSpec` of the input of a batch.
        places: of the model's variables in `Values.flat`.
        optimizer_places: of those of its optimizer.
        digest: of what it computes, where a copy of it might compute something else; or None.
    """

    model: keras.Model
    x_spec: Any
    places: Sequence[int]
    optimizer_places: Sequence[int]
    digest: str | None

    @classmethod
    def of(
        cls, model: keras.Model, state: ModelState, x_spec: Any, function: EvaluationFunction
    ) -> TrainedModel:
        """Looks at a model.

        Raises:
            CopyRefusedError: no copy is known to answer like the model.
        """
        places = places_of(model, state, model.variables)
        optimizer_places: list[int] = []
        if isinstance(model.optimizer, keras.optimizers.Optimizer):
            with contextlib.suppress(CopyRefusedError):  # it is another one, whose state nobody knows
                optimizer_places = places_of(model, state, model.optimizer.variables)
        stock = function.clone is None and all(map(is_stock, keras_models.flat_layers(model)))
        return cls(model, x_spec, places, optimizer_places, None if stock else digest_of(model, x_spec))


class FunctionProcess(Closing):
    """Calls a function in a process of its own."""

    def __init__(
        self,
        name: str,
        function: EvaluationFunction,
        trained: TrainedModel,
        resources: contextlib.ExitStack,
        say: Callable[[str], None],
    ) -> None:
        """Starts the process, and does not wait for it.

        Args:
            name: the function's.
            function: with `backend="process"`.
            trained: the model; saved to a temporary file unless the function has a `clone`.
            resources: removes the file.
            say: told on this thread what the process cannot be given.

        Raises:
            TypeError: the function, or its `clone`, cannot be pickled.
            ValueError: the model cannot be saved.
        """
        self._name = name
        self._trained = trained
        model = trained.model
        path = None if function.clone is not None else _saved(name, model, resources)
        attributes, left = Attributes.of(model).portable()
        if left:
            say(
                f"the process of evaluation function {name!r} does not get these attributes of the model, "
                f"which cannot be pickled: {', '.join(left)}"
            )
        served = Served(
            function=function.function,
            clone=function.clone,
            path=path,
            x_spec=trained.x_spec,
            custom=_importable(custom_objects(model)) if function.clone is None else {},
            paths=[variable.path for variable in model.variables],
            compilation=_compilation(model),
            attributes=attributes,
            digest=trained.digest,
        )
        settings = Settings.here(_importable(thread_settings.custom_objects()))
        self._payload = _pickled(name, (settings, served))
        self._lock = threading.Lock()  # around the change of the process and the end
        self._closed = False
        self._process: Any = None
        self._connection: Any = None
        self._ready = False
        self._started_s = 0.0
        self._start()

    def is_preparing(self) -> bool:
        """Whether the process is being started, and the function cannot be called yet. Any thread."""
        return not self._ready and time.monotonic() < self._started_s + _LONGEST_START_S

    def __call__(self, values: Values, attributes: Attributes) -> tuple[Mapping[str, float], Sequence[str]]:
        """Calls the function; see `functions.FunctionCall`.

        Raises:
            Exception: what the function raised; chained to the traceback in its process.
            RuntimeError: the process ended.
        """
        self._start()
        flat = values.flat()
        variables = [flat[place].numpy() for place in self._trained.places]
        optimizer = [flat[place].numpy() for place in self._trained.optimizer_places]
        try:
            self._ready = self._ready or self._received() == READY
            self._connection.send(Request(variables, optimizer, attributes.portable()[0]))
            answer = self._received()
        except (EOFError, OSError):
            answer = None
        if answer is None:
            self._process.join(_END_S)
            raise RuntimeError(
                f"the process of evaluation function {self._name!r} ended by itself (exit code "
                f"{self._process.exitcode}); a program that uses one needs `if __name__ == '__main__':` "
                "around what it runs"
            )
        error, text, metrics, changed = answer
        if error is not None:
            raise error from RuntimeError(f"in the process of evaluation function {self._name!r}:\n{text}")
        return metrics, changed

    def close(self) -> None:
        """Ends the process, whatever it does. Idempotent; any thread."""
        self._end(_END_S)

    def close_now(self) -> None:
        """Kills the process."""
        self._end(0.0)

    def _end(self, within_s: float) -> None:
        with self._lock:
            self._closed = True
            process, link = self._process, self._connection
        if process is None:
            return
        if process.is_alive():
            process.terminate()
            process.join(within_s)
        if process.is_alive():
            process.kill()
            process.join()
        link.close()

    def _received(self) -> Any:
        """Waits for what the process sends; None if it ended."""
        connection.wait([self._connection, self._process.sentinel])
        return self._connection.recv() if self._connection.poll() else None

    def _start(self) -> None:
        """Starts the process if it is not running."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the process of evaluation function {self._name!r} has been ended")
            if self._process is not None and self._process.is_alive():
                return
            context = multiprocessing.get_context("spawn")  # a fork of TensorFlow's threads would hang
            self._connection, theirs = context.Pipe()
            self._process = context.Process(
                target=serve_function,
                args=(theirs, self._payload),
                name=f"validation-{self._name}",
                daemon=False,  # the function may start processes of its own
            )
            self._ready, self._started_s = False, time.monotonic()
            with _in_a_directory():
                self._process.start()
            theirs.close()


def _in_a_directory() -> contextlib.ExitStack:
    """Stands in the root where the working directory has been removed: a new process asks for its name."""
    undo = contextlib.ExitStack()
    try:
        os.getcwd()
    except FileNotFoundError:
        removed = os.open(".", os.O_RDONLY)
        os.chdir("/")
        undo.callback(os.close, removed)
        undo.callback(os.fchdir, removed)
    return undo


def _saved(name: str, model: keras.Model, resources: contextlib.ExitStack) -> str:
    directory = resources.enter_context(tempfile.TemporaryDirectory(prefix="overlap_train-"))
    path = str(Path(directory) / "model.keras")
    try:
        model.save(path)
    except Exception as error:  # a configuration of the user's own raises anything
        raise ValueError(
            f"the model of evaluation function {name!r} cannot be saved for a process of its own ({error}); "
            "pass EvaluationFunction(..., clone=...) with a function that makes the model anew"
        ) from error
    return path


def _importable(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the classes and functions that another process finds; Keras says which others it misses."""
    found = {}
    for name, each in objects.items():
        with contextlib.suppress(Exception):  # such as of a class inside a function
            pickle.dumps(each)
            found[name] = each
    return found


def _compilation(model: keras.Model) -> dict[str, Any] | None:
    """Returns what a model was compiled with, for one that is made anew; None where that cannot be told."""
    try:
        config: dict[str, Any] | None = model.get_compile_config()
        pickle.dumps(config)
    except Exception:  # of a loss or an optimizer of the user's own
        return None
    return config


def _pickled(name: str, payload: Any) -> bytes:
    try:
        return pickle.dumps(payload)
    except Exception as error:  # objects of others raise anything
        raise TypeError(
            f"evaluation function {name!r} cannot be sent to a process of its own ({error}): function and "
            f"clone must be importable by name; got {shown(payload[1].function)}"
        ) from error
