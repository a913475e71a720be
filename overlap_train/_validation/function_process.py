"""An evaluation function in a process of its own: the parent's half and the child's.

The parent sends the values of the model's variables, the child answers with what the function returned. The
parent's half belongs to the function's thread, but for `close`; a process that has died, or that was killed
because nobody waits for it any more, is started again for the next snapshot.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from overlap_train._snapshot import Values
from overlap_train._support.arguments import shown
from overlap_train._validation.private_model import build
from overlap_train.options.functions import EvaluationFunction, metric_values

__all__ = ["FunctionProcess", "serve_function"]

_END_S = 5.0
# A process that takes longer to import and to make its model counts as one that hangs.
_LONGEST_START_S = 300.0
_READY = "ready"


class FunctionProcess:
    """Calls a function in a process of its own."""

    def __init__(
        self,
        name: str,
        function: EvaluationFunction,
        model: keras.Model,
        x_spec: Any,
        places: Sequence[int],
        resources: contextlib.ExitStack,
    ) -> None:
        """Starts the process, and does not wait for it.

        Args:
            name: the function's.
            function: with `backend="process"`.
            model: built and compiled; saved to a temporary file unless the function has a `clone`.
            x_spec: nested `tf.TensorSpec` of the input of a batch.
            places: of the model's variables in `Values.flat`.
            resources: removes the file.

        Raises:
            TypeError: the function, or its `clone`, cannot be pickled.
            ValueError: the model cannot be saved.
        """
        self._name = name
        self._places = places
        path = None if function.clone is not None else _saved(name, model, resources)
        self._payload = _pickled(name, (function.function, function.clone, path, x_spec))
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

    def __call__(self, values: Values) -> tuple[Mapping[str, float], Sequence[str]]:
        """Calls the function; see `functions.FunctionCall`.

        Raises:
            Exception: what the function raised; chained to the traceback in its process.
            RuntimeError: the process ended.
        """
        self._start()
        flat = values.flat()
        arrays = [flat[place].numpy() for place in self._places]
        try:
            self._ready = self._ready or self._received() == _READY
            self._connection.send(arrays)
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
        with self._lock:
            self._closed = True
            process, link = self._process, self._connection
        if process is None:
            return
        if process.is_alive():
            process.terminate()
            process.join(_END_S)
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


@contextlib.contextmanager
def _in_a_directory() -> Iterator[None]:
    """Stands in the root where the working directory has been removed: a new process asks for its name."""
    try:
        os.getcwd()
    except FileNotFoundError:
        removed = os.open(".", os.O_RDONLY)
        os.chdir("/")
        try:
            yield
        finally:
            os.fchdir(removed)
            os.close(removed)
    else:
        yield


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


def _pickled(name: str, payload: Any) -> bytes:
    try:
        return pickle.dumps(payload)
    except Exception as error:  # objects of others raise anything
        raise TypeError(
            f"evaluation function {name!r} cannot be sent to a process of its own ({error}): function and "
            f"clone must be importable by name; got {shown(payload[0])}"
        ) from error


def serve_function(link: Any, payload: bytes) -> None:
    """Answers the parent's requests; the child's main thread.

    Args:
        link: to the parent; once that has gone, this process ends.
        payload: what `FunctionProcess` pickled.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    with contextlib.suppress(RuntimeError):  # TensorFlow may have been started by the user's imports
        tf.config.set_visible_devices([], "GPU")
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, requests), name="requests", daemon=True).start()
    function = model = failed = None
    try:
        function, clone, path, x_spec = pickle.loads(payload)
        model = clone() if clone is not None else keras.saving.load_model(path, safe_mode=False)
        build(model, x_spec)
    except BaseException as error:
        failed = error, traceback.format_exc()
    link.send(_READY)
    while True:
        arrays = requests.get()
        link.send(_portable(failed) if failed is not None else _answer(function, model, arrays))


def _read(link: Any, requests: queue.SimpleQueue[Any]) -> None:
    """Hands requests on, and ends this process when the parent has gone, whatever the function does."""
    while True:
        try:
            requests.put(link.recv())
        except (EOFError, OSError):
            os._exit(0)


def _answer(function: Any, model: keras.Model, arrays: Sequence[Any]) -> tuple[Any, ...]:
    try:
        variables = model.variables
        if [tuple(v.shape) for v in variables] != [array.shape for array in arrays]:
            raise ValueError(
                "the model made in this process has other variables than the one that is trained"
            )
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)
        process = os.getpid()
        try:
            returned = function(model)
        finally:
            if os.getpid() != process:
                os._exit(1)  # a fork of the function's that came back from it
        changed = [
            variable.path
            for variable, array in zip(variables, arrays, strict=True)
            if variable.numpy().tobytes() != array.tobytes()
        ]
        return None, "", metric_values(returned), changed
    except BaseException as error:
        return _portable((error, traceback.format_exc()))


def _portable(failed: tuple[BaseException, str]) -> tuple[Any, ...]:
    """Returns an error as an answer; one that cannot be pickled as what it says."""
    error, text = failed
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    if not isinstance(error, Exception):
        error = RuntimeError(f"{type(error).__name__}: {error}")  # such as SystemExit
    return error, text, {}, ()
