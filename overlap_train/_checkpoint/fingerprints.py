"""Whom a checkpoint belongs to: what decides the values in a history, each part by its name.

They go into a checkpoint's fingerprint. A training that would go on with others is refused, because its
history would hold values of two kinds under one name. What follows the word "digest" tells data from
other data, and no user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._checkpoint.configuration import described, flat, numbered
from overlap_train._checkpoint.data_state import rows_that_tell
from overlap_train._data.feed import Feed
from overlap_train._data.pipeline import stages_of
from overlap_train._keras import copies as keras_copies
from overlap_train._support.numbers import array_of

__all__ = ["describe_data", "describe_sets", "describe_variables", "digest_of", "fingerprint"]


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
