"""The process of an evaluation function: makes the model anew and answers the requests of `function_process`.

A copy that might answer otherwise than the model itself is refused: it has the same variables, layers and
attributes, and computes the same of a batch, where its configuration may not say all.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from overlap_train._keras import copies as keras_copies
from overlap_train._keras import models as keras_models
from overlap_train._support.printing import told
from overlap_train._validation.attributes import Attributes
from overlap_train._validation.computations import CopyRefusedError, digest_of
from overlap_train._validation.private_model import build, cloned
from overlap_train.options.functions import metric_values

__all__ = ["READY", "Request", "Served", "Settings", "serve_function"]

READY = "ready"
"""What the process says once it has made the model, or has failed to."""


@dataclass(frozen=True)
class Settings:
    """What holds for all that Keras makes in a process.

    Attributes:
        dtype_policy: serialised.
        floatx: the default dtype.
        epsilon: the fuzz factor.
        image_data_format: "channels_last" or "channels_first".
        custom: what Keras finds by name, registered or in a scope.
    """

    dtype_policy: Any
    floatx: str
    epsilon: float
    image_data_format: str
    custom: Mapping[str, Any]

    @classmethod
    def here(cls, custom: Mapping[str, Any]) -> Settings:
        """Returns those of this process and thread, with `custom`, which can be pickled."""
        config = keras.config
        policy = keras.dtype_policies.serialize(config.dtype_policy())
        return cls(policy, config.floatx(), config.epsilon(), config.image_data_format(), custom)

    def apply(self) -> None:
        """Makes them hold in this process."""
        keras.config.set_floatx(self.floatx)
        keras.config.set_epsilon(self.epsilon)
        keras.config.set_image_data_format(self.image_data_format)
        keras.saving.get_custom_objects().update(self.custom)
        keras.config.set_dtype_policy(keras.dtype_policies.deserialize(self.dtype_policy))


@dataclass(frozen=True)
class Served:
    """What the process serves.

    Attributes:
        function: the user's.
        clone: makes the model; None loads it.
        path: of the saved model, or None.
        x_spec: nested `tf.TensorSpec` of the input of a batch.
        custom: the user's classes and functions in the saved model, by name.
        paths: of the trained model's variables.
        compilation: with which that is compiled, serialised, or None.
        attributes: of that, made `portable`.
        digest: of what that computes, or None where a copy is known to compute the same.
    """

    function: Any
    clone: Callable[[], keras.Model] | None
    path: str | None
    x_spec: Any
    custom: dict[str, Any]
    paths: Sequence[str]
    compilation: dict[str, Any] | None
    attributes: bytes
    digest: str | None


@dataclass(frozen=True)
class Request:
    """Of one snapshot.

    Attributes:
        variables: the values of the model's variables.
        optimizer: those of its optimizer's.
        attributes: of the model, made `portable`.
    """

    variables: Sequence[Any]
    optimizer: Sequence[Any]
    attributes: bytes


def serve_function(link: Any, payload: bytes) -> None:
    """Answers the parent's requests; the child's main thread.

    Args:
        link: to the parent; once that has gone, this process ends.
        payload: `Settings` and what is `Served`, pickled.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    with contextlib.suppress(RuntimeError):  # TensorFlow may have been started by the user's imports
        tf.config.set_visible_devices([], "GPU")
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, requests), name="requests", daemon=True).start()
    try:
        settings, served = pickle.loads(payload)
        settings.apply()
        answer = _Server(served).answer
    except BaseException as error:
        failed = _portable((error, traceback.format_exc()))

        def answer(request: Request) -> tuple[Any, ...]:
            return failed

    link.send(READY)
    while True:
        link.send(answer(requests.get()))


class _Server:
    """Calls the function with the model that it has made.

    Args:
        served: what to serve.

    Raises:
        ValueError: the model is no copy of the one that is trained.
        Exception: what making it raises.
    """

    def __init__(self, served: Served) -> None:
        self._function = served.function
        if served.clone is not None:
            self._model = cloned(served.clone)
        else:
            self._model = keras.saving.load_model(served.path, served.custom, safe_mode=False)
        build(self._model, served.x_spec)
        attributes = Attributes.sent(served.attributes)
        try:
            self._require_alike(attributes, served)
            attributes.give(self._model, None)
            if served.digest is not None and digest_of(self._model, served.x_spec) != served.digest:
                raise CopyRefusedError(
                    "it computes something else of a batch; what it depends on, apart from its "
                    "configuration, has to be the same in a process that imports the program"
                )
        except CopyRefusedError as error:
            raise ValueError(
                f"the model made in this process is no copy of the trained one: {error}"
            ) from error
        self._given = attributes
        for variable, path in zip(self._model.variables, served.paths, strict=True):
            keras_copies.set_path(variable, path)
        self._compile(served.compilation)

    def _require_alike(self, attributes: Attributes, served: Served) -> None:
        kinds = tuple(type(layer).__name__ for layer in keras_models.flat_layers(self._model))
        if kinds != attributes.kinds:
            raise CopyRefusedError(f"it consists of {', '.join(kinds)}, not {', '.join(attributes.kinds)}")
        if len(self._model.variables) != len(served.paths):
            raise CopyRefusedError(f"it has {len(self._model.variables)} variables, not {len(served.paths)}")

    def _compile(self, compilation: dict[str, Any] | None) -> None:
        """Compiles the model as the trained one, unless it is; where that fails, `evaluate` says so."""
        if not self._model.compiled and compilation is not None:
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._model.compile_from_config(compilation)
        keras_copies.build_optimizer(self._model)

    def answer(self, request: Request) -> tuple[Any, ...]:
        """Returns the error, its traceback, the metrics, and the names of what the function changed."""
        try:
            self._adopt(request)
            process = os.getpid()
            try:
                returned = self._function(self._model)
            finally:
                if os.getpid() != process:
                    os._exit(1)  # a fork of the function's that came back from it
            changed = [
                variable.path
                for variable, array in zip(self._model.variables, request.variables, strict=True)
                if variable.numpy().tobytes() != array.tobytes()
            ]
            return None, "", metric_values(returned), changed
        except BaseException as error:
            return _portable((error, traceback.format_exc()))

    def _adopt(self, request: Request) -> None:
        model = self._model
        if [tuple(v.shape) for v in model.variables] != [array.shape for array in request.variables]:
            raise ValueError(
                "the model made in this process has other variables than the one that is trained"
            )
        for variable, array in zip(model.variables, request.variables, strict=True):
            variable.assign(array)
        optimizer = getattr(model, "optimizer", None)
        theirs = optimizer.variables if isinstance(optimizer, keras.optimizers.Optimizer) else []
        # One that a clone has compiled with another optimizer keeps its own.
        if [tuple(v.shape) for v in theirs] == [array.shape for array in request.optimizer]:
            for variable, array in zip(theirs, request.optimizer, strict=True):
                variable.assign(array)
        attributes = Attributes.sent(request.attributes)
        attributes.give(model, self._given)
        self._given = attributes
        model.stop_training = False


def _read(link: Any, requests: queue.SimpleQueue[Any]) -> None:
    """Hands requests on, and ends this process when the parent has gone, whatever the function does."""
    while True:
        try:
            requests.put(link.recv())
        except (EOFError, OSError):
            os._exit(0)


def _portable(failed: tuple[BaseException, str]) -> tuple[Any, ...]:
    """Returns an error as an answer; one that cannot be pickled as what it says."""
    error, text = failed
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(told(error))
    if not isinstance(error, Exception):
        error = RuntimeError(told(error))  # such as SystemExit
    return error, text, {}, ()
