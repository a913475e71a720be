"""A validation on a host of its own: how the chief and the evaluator find, check and serve each other.

The same program runs on both and calls `fit` with the same arguments. On the chief, `connect_suite` returns
the suite whose validations the evaluator makes. On the evaluator, `serve` answers the chief's messages until
the training ends, and leaves the history and the last weights behind, as on the training hosts.
Everything belongs to the threads that called `fit`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._checkpoint.fingerprints import describe_variables
from overlap_train._fit.interrupts import Interrupts
from overlap_train._fit.settings import TrainerSettings
from overlap_train._keras import metrics as keras_metrics
from overlap_train._keras import models as keras_models
from overlap_train._snapshot import ModelState, Values
from overlap_train._support.fit_arguments import epoch_selector
from overlap_train._support.printing import told
from overlap_train._support.version import __version__
from overlap_train._validation.pending import NamedRunner
from overlap_train._validation.remote import RemoteEvaluator, RemoteRunner
from overlap_train._validation.suite import ValidationSuite
from overlap_train.errors import HostLostError, HostMismatchError
from overlap_train.options.validation import ValidationPolicy, ValidationSet
from overlap_train.parallel.cluster import program_digest
from overlap_train.parallel.evaluator import EvaluatorPlace
from overlap_train.parallel.link import Link, MisunderstoodError, accept, connect
from overlap_train.parallel.protocol import abridged, as_json, is_list, is_request, judge

__all__ = ["connect_suite", "describe", "serve"]

_ANSWER_S, _RETRY_S = 60.0, 0.5
_DIGEST_ROWS = 64
_log = logging.getLogger(__name__)


def describe(
    place: EvaluatorPlace,
    model: keras.Model,
    sets: Mapping[str, ValidationSet],
    policy: ValidationPolicy,
    *,
    batch_by_batch: bool,
) -> dict[str, str]:
    """Returns what has to be the same on the chief and on the evaluator, by name.

    Args:
        place: where the evaluator is.
        model: built and compiled.
        sets: the validation sets by name.
        policy: how the validation runs.
        batch_by_batch: whether a callback listens to the batches of the validation.
    """
    chosen = {name: dataclasses.replace(chosen, data=None) for name, chosen in sets.items()}
    description = {
        "version of overlap_train": __version__,
        "cluster": place.cluster,
        "program": program_digest(),
        "ValidationPolicy": str(policy),
        "choice of validation sets": str(chosen),
        "validation data": "\n".join(f"{name}: {_described(chosen.data)}" for name, chosen in sets.items()),
        "structure of the model": "\n".join(
            type(layer).__name__ for layer in keras_models.flat_layers(model)
        ),
        "model": str(describe_variables(model.variables)),
        "listening to test batches": str(batch_by_batch),
    }
    return {part: abridged(text) for part, text in description.items()}


def connect_suite(
    settings: TrainerSettings,
    state: ModelState,
    sets: Mapping[str, ValidationSet],
    resources: contextlib.ExitStack,
    *,
    batch_by_batch: bool,
) -> ValidationSuite:
    """Returns the suite of a training host whose validations the cluster's evaluator makes.

    Args:
        settings: what the trainer was given; the chief of its hosts connects.
        state: the variables of the model.
        sets: the validation sets by name; not read but for their description.
        resources: closes the connection, telling the evaluator how the training ended.
        batch_by_batch: whether a callback listens to the batches of the validation.

    Raises:
        HostLostError: if there is no evaluator.
        HostMismatchError: if it differs, or refuses.
    """
    model, policy, hosts = settings.model, settings.validation, settings.hosts
    assert settings.replicas is not None
    place = settings.replicas.evaluator
    assert place is not None

    def begin() -> tuple[RemoteEvaluator, list[str]]:
        described = describe(place, model, sets, policy, batch_by_batch=batch_by_batch)

        def take_back(timeout_s: float, stopped: Callable[[], bool]) -> Link:
            return _call(place, described, timeout_s=timeout_s, stopped=stopped)[0]

        link, rewindable = _call(place, described, timeout_s=place.timeout_s)
        evaluator = RemoteEvaluator(link, settings.recorder.add, take_back=take_back, return_s=place.return_s)
        return resources.enter_context(_Telling(evaluator, state, model)), rewindable

    remote, rewindable = hosts.chief_first(begin) or (None, [])
    rewindable = hosts.from_chief(rewindable)
    runners = [
        NamedRunner(
            name,
            RemoteRunner(name, remote, hosts, rewindable=name in rewindable),
            epoch_selector(chosen.freq),
        )
        for name, chosen in sets.items()
    ]
    return ValidationSuite(runners, on_error=policy.on_error, hosts=hosts)


def serve(
    place: EvaluatorPlace,
    description: Mapping[str, str],
    suite: ValidationSuite,
    state: ModelState,
    model: keras.Model,
) -> str:
    """Makes the chief's validations until the training ends; then the model has its weights and history.

    Args:
        place: where this host listens.
        description: what `describe` returned here.
        suite: evaluates the sets on this host.
        state: the variables of the model.
        model: built and compiled, with a `History`.

    Returns:
        How the training ended, as in `Trainer.ended`.

    Raises:
        ValueError: if the validation cannot be made on another host.
        HostLostError: if the chief does not come, or goes before the end.
        HostMismatchError: if it differs, or has failed.
        KeyboardInterrupt: on a second signal; a first one is for the training hosts.
    """
    while True:
        link, _ = accept(
            place.address,
            "chief",
            timeout_s=place.timeout_s,
            credentials=place.credentials,
            bind_address=place.bind_address,
            check=functools.partial(judge, description=description, in_step=_obstacle(suite, state)),
        )
        # A first signal is for the training hosts, whose end ends this one.
        with link, Interrupts(insists=False):
            try:
                link.send({"kind": "welcome", "rewindable": suite.rewindable_names})
                message, values = _serve_one(link, suite, state)
                break
            except MisunderstoodError as error:  # no chief says such things
                _log.warning("waiting for another chief: %s", error)
    state.restore(values)
    model.history.epoch, model.history.history = message["epoch"], message["history"]
    model.history.ended = message["ended"]
    return str(message["ended"])


def _call(
    place: EvaluatorPlace,
    described: Mapping[str, str],
    *,
    timeout_s: float,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Link, list[str]]:
    """Returns a connection to the evaluator, which has let this host in, and its rewindable sets.

    Raises:
        HostLostError: if there is no evaluator in that time.
        HostMismatchError: if it differs, or refuses.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left = max(0.1, deadline - time.monotonic())
        link = connect(
            place.address, "evaluator", timeout_s=left, credentials=place.credentials, stopped=stopped
        )
        with contextlib.ExitStack() as undo:
            undo.callback(link.close)
            try:
                link.send({"kind": "hello", "description": described})
                answer, _ = link.receive(timeout_s=_ANSWER_S)
            except HostLostError as error:  # one that had just ended, perhaps, and is started again
                if isinstance(error, MisunderstoodError) or stopped() or time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_S)
                continue
            rewindable = answer.get("rewindable")
            if answer.get("kind") != "welcome" or not is_list(rewindable, str):
                raise HostMismatchError(str(answer.get("error", "the evaluator cannot be understood"))[:3000])
            undo.pop_all()
        return link, rewindable


def _serve_one(link: Link, suite: ValidationSuite, state: ModelState) -> tuple[dict[str, Any], Values]:
    """Makes a chief's validations and returns its last message, with the last values.

    Raises:
        MisunderstoodError: if it says what a chief does not say.
        HostLostError: if it goes before the end.
        HostMismatchError: if it has failed.
    """
    while True:
        message, values = _receive(link, state)
        if message["kind"] == "failed":
            raise HostMismatchError(f"the chief has failed: {str(message.get('error'))[:3000]}")
        if message["kind"] == "end":
            return message, values
        link.send(_answer(message, values, suite))


def _receive(link: Link, state: ModelState) -> tuple[dict[str, Any], Values]:
    """Waits for a message of the chief; its values are the present ones but for the weights that came."""
    present = state.read()
    weights = [*present.trainable, *present.non_trainable]
    sizes = [int(value.shape.num_elements() * value.dtype.size) for value in weights]
    message, parts = link.receive(sizes)
    if not is_request(message) or (message["kind"] != "failed" and len(parts) != len(weights)):
        raise MisunderstoodError(f"the chief cannot be understood: {str(message)[:300]}")
    if not parts:
        return message, present
    flat = tuple(
        tf.constant(np.frombuffer(part, value.dtype.as_numpy_dtype).reshape(value.shape))
        for part, value in zip(parts, weights, strict=True)
    )
    count = len(present.trainable)
    return message, dataclasses.replace(present, trainable=flat[:count], non_trainable=flat[count:])


def _answer(message: Mapping[str, Any], values: Values, suite: ValidationSuite) -> dict[str, Any]:
    """Does what the chief asks; what goes wrong is the answer, for the chief to decide upon."""
    try:
        if message["kind"] == "check":
            suite.check(message["set"], values)
            return {"kind": "result"}
        result = suite.evaluate(message["set"], values)
        running = [as_json(keras_metrics.python_logs(each.logs)) for each in result.running]
        return {"kind": "result", "metrics": as_json(result.metrics), "running": running}
    except Exception as error:
        return {"kind": "error", "error": told(error)}


def _obstacle(suite: ValidationSuite, state: ModelState) -> str | None:
    """Returns why another host cannot make these validations, or None."""
    if suite.reasons or not state.outside:
        return str(suite.reasons[0]) if suite.reasons else None
    names = ", ".join(variable.name for variable in state.outside[:3])
    return f"the validation reads variables outside the model ({names}), which an evaluator does not get"


class _Telling:
    """Tells the evaluator at the end how the training went."""

    def __init__(self, remote: RemoteEvaluator, state: ModelState, model: keras.Model) -> None:
        self._remote = remote
        self._state = state
        self._model = model

    def __enter__(self) -> RemoteEvaluator:
        return self._remote

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            now = isinstance(error, KeyboardInterrupt)
            self._remote.end({"kind": "failed", "error": told(error)}, now=now)
            return
        history = self._model.history
        message = {"epoch": history.epoch, "history": as_json(history.history), "ended": history.ended}
        self._remote.end({"kind": "end", **message}, self._state.read())


def _described(data: Any) -> str:
    """Describes a validation set without reading all of it."""
    leaves = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(data))
    return ", ".join(_described_leaf(leaf) for leaf in leaves if leaf is not None)


def _described_leaf(leaf: Any) -> str:
    """Returns the shape, the type and a digest of some rows of an array; of other data its kind."""
    if isinstance(leaf, tf.data.Dataset):
        return f"dataset of {leaf.element_spec}"
    if not isinstance(leaf, (np.ndarray, tf.Tensor)) or not leaf.shape or not leaf.shape[0]:
        return type(leaf).__name__
    rows = sorted({i * (leaf.shape[0] - 1) // (_DIGEST_ROWS - 1) for i in range(_DIGEST_ROWS)})
    some = np.asarray(tf.gather(leaf, rows) if tf.is_tensor(leaf) else leaf[rows])
    content = repr(some.tolist()).encode() if some.dtype.hasobject else some.tobytes()
    return f"{tuple(leaf.shape)} {some.dtype} {hashlib.sha256(content).hexdigest()[:16]}"
