"""Whom a checkpoint belongs to, described by what decides the values in a history.

They go into a checkpoint's fingerprint. A training that would go on with others is refused, because its
history would hold values of two kinds under one name. Names are compared without the numbers that Keras
appends to make them unique, see `layout`.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._checkpoint.data_state import rows_that_tell
from overlap_train._checkpoint.state import layout
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import stages_of
from overlap_train._keras import copies as keras_copies
from overlap_train._support.numbers import array_of

__all__ = ["describe_data", "describe_loss", "describe_metrics", "describe_sets", "fingerprint"]

# Of a serialised function only its name counts: where it was imported from says nothing about what it does.
_LEFT_OUT = ("module", "registered_name", "dtype")


def fingerprint(model: keras.Model, feed: Feed) -> dict[str, str]:
    """Describes what a checkpoint belongs to: the model, what it is compiled with, and the data."""
    optimizer = model.optimizer  # None where a train_step of the model's own needs none
    return {
        "model": layout(model.variables),
        "optimizer": f"{type(optimizer).__name__}\n{layout(getattr(optimizer, 'variables', ()))}",
        "loss": describe_loss(model),
        "metrics": describe_metrics(model),
        "data": _described_feed(feed),
    }


def describe_metrics(model: keras.Model) -> str:
    """Returns one line for each metric of a compiled model, then those of the metrics' variables.

    At last come those that count sample weights, as they were passed: a history calls them by the same names.
    """
    metrics = [part for metric in model.metrics for part in getattr(metric, "metrics", [metric])]
    given = (keras_copies.compile_arguments(model) or {}).get("weighted_metrics")
    weighted = [f"weighted: {_described(part)}" for part in keras.tree.flatten(given or [])]
    return "\n".join([*map(_described, metrics), layout(model.metrics_variables), *weighted])


def _described_feed(feed: Feed) -> str:
    """Returns what tells training data from other data.

    Names do not, of which a pipeline holds those of its files: they may lie elsewhere in the next run.
    """
    if feed.made_of is None:
        return feed.describe()
    digest = hashlib.sha256()
    for array in _sources(feed.made_of):
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(b"" if array.dtype.hasobject else _content(array))
    return f"{feed.describe()}\ndigest of its arrays {digest.hexdigest()[:16]}"


def describe_loss(model: keras.Model) -> str:
    """Returns what the loss of a compiled model is, for several outputs one line for each."""
    loss = model.loss
    if isinstance(loss, Mapping):
        return "\n".join(f"{name}: {_described(part)}" for name, part in loss.items())
    return "\n".join(map(_described, loss if isinstance(loss, (list, tuple)) else [loss]))


def describe_sets(sets: Mapping[str, Any]) -> str:
    """Returns two lines for each validation set: which part of it is used when, and its data.

    Args:
        sets: by name, with the attributes `data`, `freq`, `steps` and `batch_size`.
    """
    lines = []
    for name, chosen in sets.items():
        freq = chosen.freq if isinstance(chosen.freq, int) else np.asarray(chosen.freq).tolist()
        name = name or "validation_data"
        lines.append(f"{name}: freq {freq}, steps {chosen.steps}, batch size {chosen.batch_size}")
        lines.append(f"{name}: {describe_data(chosen.data)}")
    return "\n".join(lines) or "none"


def describe_data(data: Any) -> str:
    """Returns what tells validation data from other data, without drawing from it.

    Arrays are told apart by their content, and datasets by their specification, their length and the arrays
    that they were made from. Data made by Python has nothing to be told apart by but its class and length.

    Args:
        data: what `keras.Model.fit` takes as `validation_data`.
    """
    leaves = keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(data))
    shown, digest = [], hashlib.sha256()
    for leaf in leaves:
        if leaf is None:
            digest.update(b"None")
            continue
        text, arrays = _leaf(leaf)
        shown.append(text)
        for array in arrays:
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update(_content(array))
    shown = shown if len(shown) <= 4 else [*shown[:3], f"{len(shown) - 3} more"]
    return f"digest {digest.hexdigest()[:16]} of {' and '.join(shown)}"


def _leaf(leaf: Any) -> tuple[str, list[npt.NDArray[Any]]]:
    """Returns a text about one part of the data, and the arrays that tell it apart."""
    if isinstance(leaf, tf.data.Dataset):
        length = int(leaf.cardinality()) if tf.executing_eagerly() else "unknown"
        return f"dataset of {length} x {leaf.element_spec}", list(_sources(leaf))
    if isinstance(leaf, keras.utils.PyDataset):
        return f"{type(leaf).__name__} of {leaf.num_batches}", []
    if hasattr(leaf, "__next__") or not (hasattr(leaf, "__array__") or isinstance(leaf, (int, float, str))):
        return type(leaf).__name__, []
    array = array_of(leaf)
    return f"{array.shape} {array.dtype}", [array]


def _sources(dataset: Any) -> Iterator[npt.NDArray[Any]]:
    """Yields the tensors that the first stages of a dataset slice or repeat, and of those in its functions.

    TensorFlow has no public way to ask; where its private names move, nothing is found and datasets are told
    apart by specification and length alone.
    """
    for stage in stages_of(dataset):
        for tensor in getattr(stage, "_tensors", ()):
            if isinstance(tensor, tf.Tensor) and tensor.dtype.is_numpy_compatible:
                yield array_of(tensor)


def _content(array: npt.NDArray[Any]) -> bytes:
    array = rows_that_tell(array)
    if array.dtype.hasobject:
        plain = (str, bytes, int, float)
        return repr([v if isinstance(v, plain) else type(v).__name__ for v in array.ravel()]).encode(
            "utf-8", "surrogatepass"
        )
    return np.ascontiguousarray(array).tobytes()


def _described(part: Any) -> str:
    """Returns what a loss or a metric is: its class and its settings, or a function's name."""
    if part is None or isinstance(part, str):
        return str(part)
    if not isinstance(part, (keras.losses.Loss, keras.metrics.Metric)):
        return str(getattr(part, "__name__", type(part).__name__))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of lambdas, which are not stored here
            config = part.get_config()
    except Exception:  # of a user's class, which need not be able to tell
        config = {"name": part.name}
    return f"{type(part).__name__} {_plain(config)}"


def _plain(value: Any) -> Any:
    """Returns the part of a setting that is the same in every process."""
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":
            return "lambda"
        kept = {str(key): _plain(item) for key, item in value.items() if key not in _LEFT_OUT}
        if isinstance(kept.get("name"), str):
            kept["name"] = re.sub(r"_\d+$", "", kept["name"])
        return dict(sorted(kept.items()))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else type(value).__name__
