"""What tells one training from another: whom a checkpoint belongs to, and how its training was configured.

A fingerprint has what decides the values in a history, part by part. A training that would go on with another
one is refused, because its history would hold values of two kinds under one name. What follows the word
"digest" tells data from other data, and no user.

Settings may differ, and then it is said which. What is compared is how the two trainings began, so that
nothing that a callback or a schedule has set since counts. Names are compared without the numbers that Keras
appends to make them unique, and seeds not at all: the states that follow from them are in the checkpoint.
"""

from __future__ import annotations

import hashlib
import re
import types
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._checkpoint.attributes import rows_that_tell
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import stages_of
from overlap_train._keras import copies as keras_copies
from overlap_train._keras import models as keras_models
from overlap_train._support.arguments import array_of

__all__ = [
    "describe_configuration",
    "describe_data",
    "describe_sets",
    "describe_variables",
    "described",
    "differences",
    "digest_of",
    "fingerprint",
    "flat",
    "listed_differences",
    "numbered",
    "rate_text",
]


# Of a serialised object: where its class was imported from, and what has been built of it.
_LEFT_OUT = frozenset(("build_config", "compile_config", "module", "name", "registered_name", "seed"))
_OF_MODEL = frozenset(("input_layers", "layers", "output_layers"))
_OF_COMPILE = ("auto_scale_loss", "steps_per_execution")
_PLAIN = (bool, int, float, str, type(None))
# What Keras sets while it trains.
_OF_A_RUN = frozenset(("built", "history", "stop_evaluating", "stop_training", "trainable"))
_RATE = "learning_rate"
_LONGEST = 100
_DIGEST = " digest "
_MOST_SHOWN = 8


def describe_configuration(model: keras.Model) -> dict[str, str]:
    """Return the settings of a compiled model, its layers, its optimizer and its compilation, by name."""
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of lambdas, which are not stored here
        labels = _labelled(keras_models.flat_layers(model))
        names = {layer.name: label for label, layer in labels.items()}
        for label, layer in labels.items():
            config = _config_of(layer)
            found |= flat(label, {"": type(layer).__name__, **_own_settings(layer, config)})
            for part in config.get("layers", ()) if isinstance(layer, keras.Model) else ():
                if isinstance(part, Mapping) and part.get("inbound_nodes"):
                    called = _plain(_called(part["inbound_nodes"], names))
                    own = str(part.get("name"))
                    found[f"{names.get(own, _without_numbers(own))}.inputs"] = _shown(called)
        if isinstance(getattr(model, "optimizer", None), keras.optimizers.Optimizer):
            found |= flat("optimizer", _config_of(model.optimizer))
        arguments = keras_copies.compile_arguments(model) or {}
        found |= flat("compile", {name: arguments.get(name) for name in _OF_COMPILE})
    return found


def described(label: str, part: Any) -> dict[str, str]:
    """Return what a loss or a metric is, or several: a class and its settings, or the name of a function."""
    if isinstance(part, (keras.losses.Loss, keras.metrics.Metric)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flat(label, {"": type(part).__name__, **_config_of(part)})
    if isinstance(part, (list, tuple)):
        part = {str(number): each for number, each in enumerate(part, start=1)}
    if isinstance(part, Mapping):
        return {k: v for name, each in part.items() for k, v in described(f"{label} of {name}", each).items()}
    return {label: _shown(_plain(part))}


def differences(before: Mapping[str, str], now: Mapping[str, str], rate: str | None = None) -> list[str]:
    """Return in words what differs between two descriptions, part by part.

    Of a part that is another, or that only one of them has, no settings are named. `rate` is the learning
    rate with which the training goes on, if that is a number that the checkpoint holds.
    """
    different = [name for name in dict.fromkeys([*now, *before]) if before.get(name) != now.get(name)]
    said = []
    for name in different:
        old, new = before.get(name), now.get(name)
        if any(name.startswith(f"{other}.") for other in different):
            continue
        if old is None or new is None:
            said.append(f"{name} is {'new' if old is None else 'missing'} ({_seen(new or old or '')})")
        elif rate is not None and name.endswith(_RATE) and _is_number(old) and _is_number(new):
            if new != rate:
                said.insert(0, f"{name} stays {rate}, as in the checkpoint (given: {new})")
        elif _seen(old) == _seen(new):
            said.append(f"{name} is another")
        else:
            said.append(f"{name} is {_seen(new)} (was {_seen(old)})")
    return said


def listed_differences(said: Sequence[str]) -> str:
    """Return differences as a message has them: not more than fit."""
    more = f"; and {len(said) - _MOST_SHOWN} more" if len(said) > _MOST_SHOWN else ""
    return "; ".join(said[:_MOST_SHOWN]) + more


def _seen(text: str) -> str:
    """Return what a user is shown of a description."""
    return text.split(_DIGEST)[0]


def rate_text(model: keras.Model) -> str | None:
    """Return the learning rate of a model's optimizer as configurations show it; None for a schedule."""
    rate = _config_of(model.optimizer).get(_RATE) if model.optimizer is not None else None
    return _shown(rate) if isinstance(rate, (int, float)) else None


def _labelled(layers: Iterable[keras.Layer]) -> dict[str, keras.Layer]:
    """Return layers by names that are the same in every process."""
    listed = list(layers)
    return dict(zip(numbered(layer.name for layer in listed), listed, strict=True))


def numbered(names: Iterable[str]) -> list[str]:
    """Return names that are the same in every process: without Keras's numbers, counted from 2 on."""
    count: Counter[str] = Counter()
    found = []
    for name in map(_without_numbers, names):
        count[name] += 1
        found.append(name if count[name] == 1 else f"{name} ({count[name]})")
    return found


def _without_numbers(name: str) -> str:
    """Return a name or a path without what Keras appends: the second `dense` of a process is `dense_1`."""
    return re.sub(r"_\d+(?=[_/]|$)", "", name)


def _config_of(thing: Any) -> dict[str, Any]:
    try:
        config = thing.get_config()
    except Exception:  # of a class of the user's, which need not be able to tell
        return {}
    return dict(config) if isinstance(config, Mapping) else {}


def _own_settings(layer: keras.Layer, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a layer is set to, but for the layers in it, which tell it themselves."""
    left_out = _OF_MODEL if isinstance(layer, keras.Model) else frozenset()
    found = {name: part for name, part in config.items() if name not in left_out and not _is_layer(part)}
    policy = getattr(layer, "dtype_policy", None)
    found["dtype"] = getattr(policy, "name", None)
    if not keras_models.is_stock_method(type(layer)):
        known = keras_copies.base_attributes() | _OF_A_RUN
        for name, value in vars(layer).items():
            if not name.startswith("_") and name not in known and isinstance(value, _PLAIN):
                found.setdefault(name, value)
    return found


def _is_layer(part: Any) -> bool:
    if isinstance(part, (list, tuple)):
        return bool(part) and all(map(_is_layer, part))
    config = part.get("config") if isinstance(part, Mapping) else None
    return isinstance(config, Mapping) and {"name", "trainable"} <= config.keys()


def _called(part: Any, names: Mapping[str, str]) -> Any:
    """Return how a layer is called in a functional model, with layers by the names of `_labelled`."""
    if isinstance(part, Mapping) and part.get("class_name") == "__keras_tensor__":
        name, *place = part["config"]["keras_history"]
        return [names.get(name, _without_numbers(str(name))), *place]
    if isinstance(part, Mapping):
        return {key: _called(value, names) for key, value in part.items()}
    return [_called(each, names) for each in part] if isinstance(part, (list, tuple)) else part


def flat(label: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return settings by their way through serialised objects, such as `dense.activation`."""
    return dict(_walk(label, {name: part for name, part in config.items() if name not in _LEFT_OUT}))


def _walk(label: str, part: Any) -> Iterator[tuple[str, str]]:
    if isinstance(part, Mapping) and part.get("class_name") == "__lambda__":
        yield label, "a lambda"
    elif isinstance(part, Mapping) and "class_name" in part and "config" in part:
        config = part["config"]
        named = isinstance(config, str) and part["class_name"] == "function"
        yield label, _shown(config if named else part["class_name"])
        if isinstance(config, Mapping):
            yield from _walk(label, dict(config))
    elif isinstance(part, Mapping) and all(isinstance(key, str) for key in part):
        for name, inner in part.items():
            if name not in _LEFT_OUT:
                yield from _walk(f"{label}.{name}" if name else label, inner)
    else:
        yield label, _shown(_plain(part))


def _plain(value: Any) -> Any:
    """Return the part of a setting that is the same in every process."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items() if key not in _LEFT_OUT}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, _PLAIN):
        return value
    kind = value if isinstance(value, (types.FunctionType, type)) else type(value)
    return str(getattr(kind, "__name__", kind))


def _shown(value: Any) -> str:
    """Return a setting as a message shows it, of bounded length; a digest tells long ones apart."""
    if isinstance(value, float):
        return f"{value:.7g}"
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[: _LONGEST // 2]}…{_DIGEST}{digest[:8]}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def fingerprint(model: keras.Model, feed: Feed) -> dict[str, str]:
    """Describe what a checkpoint belongs to: the model, what it is compiled with, and the data."""
    arguments = keras_copies.compile_arguments(model) or {}
    metrics = [part for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
    weighted = keras.tree.flatten(arguments.get("weighted_metrics") or [])
    return {
        **describe_variables(model.variables),
        "optimizer": type(model.optimizer).__name__,
        **described("loss", model.loss),
        **flat("compile", {"loss_weights": arguments.get("loss_weights")}),
        **_described_metrics("metric", metrics),
        **_described_metrics("weighted metric", weighted),  # which a history calls as if they were not
        **_described_feed(feed),
    }


def describe_variables(variables: Iterable[Any]) -> dict[str, str]:
    """Return the shape and dtype of each of Keras's variables, by its path."""
    listed = list(variables)
    shapes = ["x".join(map(str, variable.shape)) or "scalar" for variable in listed]
    names = numbered(variable.path for variable in listed)
    return {n: f"{s} {v.dtype}" for n, s, v in zip(names, shapes, listed, strict=True)}


def describe_sets(sets: Mapping[str, Any]) -> dict[str, str]:
    """Describe each validation set, by name: which part of it is used when, and its data."""
    found: dict[str, str] = {}
    for name, chosen in sets.items():
        label = f"validation data {name!r}" if name else "validation data"
        freq = chosen.freq if isinstance(chosen.freq, int) else np.asarray(chosen.freq).tolist()
        found |= describe_data(label, chosen.data)
        found[f"{label}.freq"] = str(freq)
        found |= {f"{label}.{part}": str(getattr(chosen, part)) for part in ("steps", "batch_size")}
    return found


def describe_data(label: str, data: Any) -> dict[str, str]:
    """Return what tells validation data from other data, without drawing from it.

    Arrays are told apart by their content, and datasets by their specification, their length and the arrays
    that they were made from. Data made by Python has nothing to be told apart by but its class and length.
    """
    leaves = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(data))
    parts = [_leaf(leaf) for leaf in leaves if leaf is not None]
    kinds, shown = dict.fromkeys(kind for kind, _, _ in parts), [text for _, text, _ in parts]
    places = [leaf is not None for leaf in leaves]
    return {
        label: " and ".join(kinds),
        f"{label}.elements": " and ".join(shown),
        f"{label}.content": f"{digest_of(array for _, _, arrays in parts for array in arrays)} {places}",
    }


def digest_of(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Return what tells arrays from others, by their rows or by some of many."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(_content(rows_that_tell(array)))
    return f" digest {digest.hexdigest()[:16]}"


def _described_feed(feed: Feed) -> dict[str, str]:
    """Return what tells training data from other data.

    Names do not, of which a pipeline holds those of its files: they may lie elsewhere in the next run.
    """
    found = {
        f"training data.{name}" if name else "training data": text for name, text in feed.describe().items()
    }
    if feed.made_of is not None:
        arrays = _sources(feed.made_of)
        numbers = (np.zeros(array.shape, bool) if array.dtype.hasobject else array for array in arrays)
        found["training data.content"] = digest_of(numbers)
    return found


def _described_metrics(label: str, metrics: Sequence[Any]) -> dict[str, str]:
    names = numbered(f"{label} {getattr(metric, 'name', metric)}" for metric in metrics)
    pairs = zip(names, metrics, strict=True)
    return {k: v for name, metric in pairs for k, v in described(name, metric).items()}


def _leaf(leaf: Any) -> tuple[str, str, list[npt.NDArray[Any]]]:
    """Return the kind of one part of the data, a text about it, and the arrays that tell it apart."""
    if isinstance(leaf, tf.data.Dataset):
        length = int(leaf.cardinality()) if tf.executing_eagerly() else "unknown"
        return "a dataset", f"{length} x {leaf.element_spec}", list(_sources(leaf))
    if isinstance(leaf, keras.utils.PyDataset):
        return type(leaf).__name__, f"{leaf.num_batches} batches", []
    if hasattr(leaf, "__next__") or not (hasattr(leaf, "__array__") or isinstance(leaf, (int, float, str))):
        return type(leaf).__name__, "batches", []
    array = array_of(leaf)
    return "arrays", f"{array.shape} {array.dtype}", [array]


def _sources(dataset: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield the tensors that the first stages of a dataset slice or repeat, and of those in its functions.

    TensorFlow has no public way to ask; where its private names move, nothing is found and datasets are told
    apart by specification and length alone.
    """
    for stage in stages_of(dataset):
        for tensor in getattr(stage, "_tensors", ()):
            if isinstance(tensor, tf.Tensor) and tensor.dtype.is_numpy_compatible:
                yield array_of(tensor)


def _content(array: npt.NDArray[Any]) -> bytes:
    if array.dtype.hasobject:
        plain = (str, bytes, int, float)
        return repr([v if isinstance(v, plain) else type(v).__name__ for v in array.ravel()]).encode(
            "utf-8", "surrogatepass"
        )
    return np.ascontiguousarray(array).tobytes()
