"""What a checkpoint belongs to, and how its training was configured, as texts by name.

A fingerprint describes, part by part, what decides the values in a history. A training with another one is
refused, because its history would hold values of two kinds under one name. What follows the word "digest" in
a text tells data apart and is not shown to users.

Settings may differ; the user is told which. They are compared as both trainings began, so that nothing that a
callback or a schedule has set since counts. Names are compared without the numbers that Keras appends to make
them unique. Seeds are not compared: the states that follow from them are in the checkpoint.
"""

from __future__ import annotations

import hashlib
import itertools
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

from overlap_train._checkpoint.attributes import keras_attributes, sampled_rows
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import stages_of
from overlap_train._keras import copies as keras_copies
from overlap_train._keras import models as keras_models
from overlap_train._support.encoding import array_of
from overlap_train._support.printing import is_number

# Of a serialised object: where its class was imported from, and what has been built of it.
_LEFT_OUT = frozenset(
    (
        *("build_config", "compile_config", "input_layers", "module", "name", "output_layers"),
        *("registered_name", "seed"),
    )
)
_OF_COMPILE = ("auto_scale_loss", "steps_per_execution")
_PLAIN = (bool, int, float, str, type(None))
_RATE = "learning_rate"
_LONGEST = 100
_DIGEST = " digest "
_MOST_SHOWN = 8


def describe_configuration(model: keras.Model) -> dict[str, str]:
    """Return the settings of a compiled model, its layers, its optimizer and its compilation, by name."""
    texts = describe_layers(model)
    if isinstance(getattr(model, "optimizer", None), keras.optimizers.Optimizer):
        texts |= _settings("optimizer", _config_of(model.optimizer))
    arguments = keras_copies.compile_arguments(model) or {}
    return texts | _settings("compile", {name: arguments.get(name) for name in _OF_COMPILE})


def describe_layers(model: keras.Model) -> dict[str, str]:
    """Return the settings of a model and its layers, by name."""
    layers = keras_models.flat_layers(model)
    texts: dict[str, str] = {}
    for label, layer in zip(numbered(layer.name for layer in layers), layers, strict=True):
        texts |= _describe_layer(label, layer)
    return texts


def _describe_layer(label: str, layer: keras.Layer) -> dict[str, str]:
    """Return the class and the settings of a layer; of a model those of its layers are apart."""
    config, own = _config_of(layer), dict[str, Any]()
    if not keras_models.is_stock_method(type(layer)):
        names = [name for name in vars(layer) if not name.startswith("_") and name not in keras_attributes()]
        own = {name: vars(layer)[name] for name in names if isinstance(vars(layer)[name], _PLAIN)}
    parts = config.pop("layers", None) if isinstance(layer, keras.Model) else None
    policy = getattr(layer, "dtype_policy", None)
    settings = {**own, **config, "dtype": getattr(policy, "name", None)}
    texts = {label: type(layer).__name__} | _settings(label, settings)
    parts = parts if isinstance(parts, list) else []
    calls = [part.get("inbound_nodes") for part in parts if isinstance(part, Mapping)]
    if any(calls):
        wiring = hashlib.sha256(repr(_plain(calls)).encode()).hexdigest()
        texts[f"{label}.wiring"] = f"{_DIGEST}{wiring[:16]}"
    return texts


def _settings(label: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return settings by name, such as `dense.activation`, as texts that are the same in every process."""
    return {f"{label}.{name}": _as_text(_plain(v)) for name, v in config.items() if name not in _LEFT_OUT}


def _describe(label: str, part: Any) -> dict[str, str]:
    """Return what a loss or a metric is, or several: a class and its settings, or the name of a function."""
    if isinstance(part, (keras.losses.Loss, keras.metrics.Metric)):
        return {label: type(part).__name__} | _settings(label, _config_of(part))
    if isinstance(part, (list, tuple)):
        part = {str(number): each for number, each in enumerate(part, start=1)}
    if isinstance(part, Mapping):
        pairs = [_describe(f"{label} of {name}", each).items() for name, each in part.items()]
        return dict(itertools.chain(*pairs))
    return {label: _as_text(_plain(part))}


def differences(before: Mapping[str, str], now: Mapping[str, str], rate: str | None = None) -> list[str]:
    """Return in words what differs between two descriptions, part by part.

    The settings of a part that is another, or that only one of them has, are left out. `rate` is the learning
    rate with which the training goes on, if that is a number that the checkpoint holds.
    """
    different = [name for name in dict.fromkeys([*now, *before]) if before.get(name) != now.get(name)]
    texts = []
    for name in different:
        old, new = before.get(name), now.get(name)
        if any(name.startswith(f"{other}.") for other in different):
            continue
        if old is None or new is None:
            texts.append(f"{name} is {'new' if old is None else 'missing'} ({_visible(new or old or '')})")
        elif rate is not None and name.endswith(_RATE) and is_number(old) and is_number(new):
            if new != rate:
                texts.insert(0, f"{name} stays {rate}, as in the checkpoint (given: {new})")
        elif _visible(old) == _visible(new):
            texts.append(f"{name} is another")
        else:
            texts.append(f"{name} is {_visible(new)} (was {_visible(old)})")
    return texts


def listed_differences(texts: Sequence[str]) -> str:
    """Return differences as one text, the first ones of many."""
    more = f"; and {len(texts) - _MOST_SHOWN} more" if len(texts) > _MOST_SHOWN else ""
    return "; ".join(texts[:_MOST_SHOWN]) + more


def _visible(text: str) -> str:
    """Return a description without its digest."""
    return text.split(_DIGEST)[0]


def rate_text(model: keras.Model) -> str | None:
    """Return the learning rate of a model's optimizer as configurations show it; None for a schedule."""
    rate = _config_of(model.optimizer).get(_RATE) if model.optimizer is not None else None
    return _as_text(rate) if isinstance(rate, (int, float)) else None


def numbered(names: Iterable[str]) -> list[str]:
    """Return names that are the same in every process: without Keras's numbers, counted from 2 on."""
    count: Counter[str] = Counter()
    labels = []
    for name in map(_without_numbers, names):
        count[name] += 1
        labels.append(name if count[name] == 1 else f"{name} ({count[name]})")
    return labels


def _without_numbers(name: str) -> str:
    """Return a name or a path without what Keras appends: the second `dense` of a process is `dense_1`."""
    return re.sub(r"_\d+(?=[_/]|$)", "", name)


def _config_of(thing: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of lambdas, which are not stored here
        try:
            config = thing.get_config()
        except Exception:  # a custom class need not have a config
            return {}
    return dict(config) if isinstance(config, Mapping) else {}


def _plain(value: Any) -> Any:
    """Return the part of a setting that is the same in every process."""
    if isinstance(value, Mapping) and {"class_name", "config"} <= value.keys():
        name, config = value["class_name"], _plain(value["config"])
        if name == "__lambda__":
            return "a lambda"
        if not isinstance(config, dict):
            return config
        return f"{name}({', '.join(f'{key}={part}' for key, part in config.items())})"
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items() if key not in _LEFT_OUT}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, str):
        return _without_numbers(value)
    if isinstance(value, _PLAIN):
        return value
    kind = value if isinstance(value, (types.FunctionType, type)) else type(value)
    return kind.__name__


def _as_text(value: Any) -> str:
    """Return a setting as a message shows it, of bounded length; a digest tells long ones apart."""
    if isinstance(value, float):
        return f"{value:.7g}"
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[: _LONGEST // 2]}…{_DIGEST}{digest[:8]}"


def fingerprint(model: keras.Model, feed: Feed) -> dict[str, str]:
    """Describe what a checkpoint belongs to: the model, what it is compiled with, and the data."""
    arguments = keras_copies.compile_arguments(model) or {}
    metrics = [part for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
    weighted = keras.tree.flatten(arguments.get("weighted_metrics") or [])
    return {
        **_describe_variables(model.variables),
        "optimizer": type(model.optimizer).__name__,
        **_describe("loss", model.loss),
        **_settings("compile", {"loss_weights": arguments.get("loss_weights")}),
        **_describe_metrics("metric", metrics),
        **_describe_metrics("weighted metric", weighted),  # which a history calls as if they were not
        **describe_feed(feed),
    }


def _describe_variables(variables: Sequence[Any]) -> dict[str, str]:
    """Return the shape and dtype of each of Keras's variables, by its path."""
    shapes = ["x".join(map(str, variable.shape)) or "scalar" for variable in variables]
    names = numbered(variable.path for variable in variables)
    return {n: f"{s} {v.dtype}" for n, s, v in zip(names, shapes, variables, strict=True)}


def describe_sets(sets: Mapping[str, Any]) -> dict[str, str]:
    """Describe each validation set, by name: which part of it is used when, and its data."""
    texts: dict[str, str] = {}
    for name, validation_set in sets.items():
        label = f"validation data {name!r}" if name else "validation data"
        freq = validation_set.freq
        texts |= describe_data(label, validation_set.data)
        texts[f"{label}.freq"] = str(freq if isinstance(freq, int) else np.asarray(freq).tolist())
        texts |= {f"{label}.{part}": str(getattr(validation_set, part)) for part in ("steps", "batch_size")}
    return texts


def describe_data(label: str, data: Any) -> dict[str, str]:
    """Return what tells validation data from other data, without drawing from it.

    Arrays are told apart by their content, and datasets by their specification, their length and the arrays
    that they were made from. Data made by Python has nothing to be told apart by but its class and length.
    """
    leaves = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(data))
    places = [leaf is not None for leaf in leaves]
    kinds, elements, arrays = zip(*(_leaf(leaf) for leaf in leaves if leaf is not None), strict=True)
    return {
        label: " and ".join(dict.fromkeys(kinds)),
        f"{label}.elements": " and ".join(elements),
        f"{label}.content": f"{_digest_of(itertools.chain(*arrays))} {places}",
    }


def _digest_of(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Return a digest of arrays: of their rows, or of some of many."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(_content(sampled_rows(array)))
    return f" digest {digest.hexdigest()[:16]}"


def describe_feed(feed: Feed) -> dict[str, str]:
    """Return what tells training data from other data.

    Text in a pipeline does not: it may be the names of its files, which may lie elsewhere in the next run.
    """
    texts = {
        f"training data.{name}" if name else "training data": text for name, text in feed.describe().items()
    }
    dataset = feed.user_dataset
    if dataset is not None:
        # Neither an endless pipeline nor one of unknown length has a number of batches.
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            texts["training data.batches"] = "endless"
        numbers = (np.zeros(a.shape, bool) if a.dtype.hasobject else a for a in _sources(dataset))
        texts["training data.content"] = _digest_of(numbers)
    return texts


def _describe_metrics(label: str, metrics: Sequence[Any]) -> dict[str, str]:
    names = numbered(f"{label} {getattr(metric, 'name', metric)}" for metric in metrics)
    pairs = zip(names, metrics, strict=True)
    return {k: v for name, metric in pairs for k, v in _describe(name, metric).items()}


def _leaf(leaf: Any) -> tuple[str, str, list[npt.NDArray[Any]]]:
    """Return the kind of one part of the data, a text about it, and the arrays that tell it apart."""
    if isinstance(leaf, tf.data.Dataset):
        return "a dataset", f"{int(leaf.cardinality())} x {leaf.element_spec}", list(_sources(leaf))
    if isinstance(leaf, keras.utils.PyDataset):
        return type(leaf).__name__, f"{leaf.num_batches} batches", []
    if hasattr(leaf, "__next__") or not (hasattr(leaf, "__array__") or isinstance(leaf, (int, float, str))):
        return type(leaf).__name__, "batches", []
    array = array_of(leaf)
    return "arrays", f"{array.shape} {array.dtype}", [array]


def _sources(dataset: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield the tensors that the first stages of a dataset slice or repeat.

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
        return repr([v if isinstance(v, plain) else type(v).__name__ for v in array.ravel()]).encode()
    return np.ascontiguousarray(array).tobytes()
