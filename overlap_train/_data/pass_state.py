"""A: what a pass depends on, so that it can be made again, here and in another process.

The seeds of shuffles without one, the variables to which a pipeline's functions write, and the state of the
Python that makes data (`_checkpoint.data_state` takes it).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from overlap_train._data.pipeline import function_nodes, is_reordering, is_unseeded, stages_of
from overlap_train._data.pipeline_facts import looked_up_once
from overlap_train._inspection.traced import CapturedVariable
from overlap_train._support.arguments import is_count


class SourceState(Protocol):
    """Takes the state of a source, and puts it back."""

    @property
    def left_out(self) -> Sequence[str]:
        """The names of what cannot be taken and may change."""

    def take(self) -> dict[str, Any]:
        """Returns the present state, in values that a checkpoint can hold."""

    def put_back(self, state: Mapping[str, Any]) -> list[str]:
        """Puts a state of another process back; returns what of it stays as it is."""


NotesState = Callable[[Any], SourceState]


class PipelineVariables:
    """The values of variables, by the number of the pass that began with them. For the training thread."""

    def __init__(self, variables: Sequence[CapturedVariable]) -> None:
        self._variables = variables
        self._values: dict[int, list[tf.Tensor]] = {}

    def note(self, number: int) -> None:
        """Records the values for a pass that is being made."""
        self._values[number] = [
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            for variable in self._variables
        ]

    def noted(self, number: int) -> list[npt.NDArray[Any]]:
        """Returns the values of a pass, for a checkpoint."""
        return [np.array(value.numpy()) for value in self._values[number]]

    def take(self, number: int, arrays: Any) -> None:
        """Takes the values of a pass in another process, or raises ValueError."""
        arrays = arrays if isinstance(arrays, list) else []
        if len(arrays) != len(self._variables) or not all(map(_fits, self._variables, arrays)):
            raise ValueError("the variables of its pipeline are invalid")
        self._values[number] = [tf.constant(array) for array in arrays]

    def put_back(self, number: int) -> None:
        """Sets the variables as they stood when a pass was made; no draw may be under way."""
        if number not in self._values:
            raise ValueError("it does not say where the variables of its pipeline stood as the pass began")
        for variable, value in zip(self._variables, self._values[number], strict=True):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)

    def forget(self, number: int) -> None:
        """Lets go of the values that only a rollback to before a pass would need."""
        self._values = {n: values for n, values in self._values.items() if n >= number}


def _fits(variable: CapturedVariable, array: Any) -> bool:
    """Whether a variable, whose shape may be open, can have a value."""
    if not isinstance(array, np.ndarray) or array.dtype != variable.dtype.as_numpy_dtype:
        return False
    return bool(variable.shape.is_compatible_with(array.shape))


_LARGEST_SEED = (1 << 63) - 1
_A_SHUFFLE = "shuffle"
_IGNORE = 1  # random operations, which are made anew with each iterator, and Python that only looks up


@looked_up_once
def unseeded_draws(dataset: Any) -> list[str]:
    """Returns in words the operations of a pipeline that draw without a seed; of other data none."""
    draws = []
    for stage in stages_of(dataset):
        if _seeds_of(stage) == (0, 0):
            if not hasattr(stage, "_reshuffle_each_iteration"):
                draws.append("Dataset.random")
            else:
                draws.append(_A_SHUFFLE if is_reordering(stage) else f"{_A_SHUFFLE} once")
        draws += [node.op for node in function_nodes(stage) if is_unseeded(node)]
    return draws


@looked_up_once
def seeds_of(dataset: Any) -> list[tuple[int, int]]:
    """Returns the seeds that were passed to the shuffles of a pipeline; other data has none."""
    return [seeds for stage in stages_of(dataset) if (seeds := _seeds_of(stage)) not in (None, (0, 0))]


def _seeds_of(stage: tf.data.Dataset) -> tuple[int, int] | None:
    """Returns the seeds of a stage that shuffles or draws, both 0 if it has none; None for other stages."""
    seeds = getattr(stage, "_seed", None), getattr(stage, "_seed2", None)
    if not all(isinstance(seed, tf.Tensor) for seed in seeds):
        return None
    return int(seeds[0]), int(seeds[1])  # type: ignore[arg-type]


class PassSeeds:
    """The seeds of the shuffles in a pipeline that has no other random operations without one."""

    def __init__(self, dataset: tf.data.Dataset, states: tf.Tensor) -> None:
        self._dataset = dataset
        self.seed = secrets.randbits(63)
        self._parts = _plain_parts(states)
        self._shuffles = [part for part in self._parts if b"@@seed2" in part.metadata]
        lasting = [part for part in self._shuffles if b"Repeat" not in part.metadata]
        if not len(self._shuffles) == len(lasting) == len(unseeded_draws(dataset)):
            raise ValueError("the seeds of its shuffles cannot be told apart")

    @classmethod
    def of(cls, dataset: tf.data.Dataset, states: tf.Tensor | None = None) -> PassSeeds | None:
        """Returns the seeds of a pipeline whose shuffles, and nothing else, draw without one; or None."""
        if set(unseeded_draws(dataset)) != {_A_SHUFFLE}:
            return None
        try:
            if states is None:
                states = state_of(iter(dataset))
            seeds = cls(dataset, states)
            seeds.iterator(0)
        except (ValueError, LookupError, tf.errors.OpError):
            return None
        return seeds

    def take(self, seed: Any) -> None:
        """Takes the seed of another process, or raises ValueError."""
        if not is_count(seed, _LARGEST_SEED):
            raise ValueError("it does not say from which seed its shuffles draw")
        self.seed = seed

    def iterator(self, number: int) -> Any:
        """Returns the iterator of a pass."""
        numbers = np.random.default_rng([self.seed, number]).integers(1, 1 << 62, (len(self._shuffles), 2))
        for part, seeds in zip(self._shuffles, numbers, strict=True):
            # The last value advances the dataset's own seeds, for iterators other than this one.
            values = {b"seed": seeds[0], b"seed2": seeds[1], b"epoch_num_random_samples": number << 20}
            for name, value in values.items():
                part.tensors[_names(part).index(name)].int64_val[:] = [int(value)]
        return _iterator_at(self._dataset, self._parts)


def noted_orders(dataset: Any) -> Callable[[], None] | None:
    """Returns what has a pipeline's shuffles draw again from where they stand now; None if nothing could.

    Each shuffle gets an iterator of its own, whose state says how often the seeds have been drawn, its own
    draws included; how many these are, the next iterator shows.
    """
    states = []
    for stage in filter(is_reordering, stages_of(dataset)):
        parts, following = _plain_parts(state_of(iter(stage))), _plain_parts(state_of(iter(stage)))
        counts = [(_draws_in(one), _draws_in(other)) for one, other in zip(parts, following, strict=True)]
        for now, after in counts:
            now[:] = [2 * count - later for count, later in zip(now, after, strict=True)]
        states.append((stage, parts))
        if not any(now for now, _ in counts):
            return None

    def put_back() -> None:
        for stage, parts in states:
            _iterator_at(stage, parts)

    put_back()
    return put_back


def state_of(iterator: Any) -> tf.Tensor:
    """Returns the state of a `tf.data` iterator, variant[n], or raises `tf.errors.OpError`."""
    return tf.raw_ops.SerializeIterator(
        resource_handle=iterator._iterator_resource, external_state_policy=_IGNORE
    )


def _iterator_at(dataset: tf.data.Dataset, parts: Sequence[tensor_pb2.VariantTensorDataProto]) -> Any:
    """Returns an iterator in a state, which also sets the seeds of the dataset's shuffles."""
    states = tensor_pb2.TensorProto(dtype=tf.variant.as_datatype_enum, variant_val=parts)
    states.tensor_shape.dim.add(size=len(parts))
    iterator = iter(dataset)
    with tf.device("CPU"):
        tf.raw_ops.DeserializeIterator(
            resource_handle=iterator._iterator_resource,
            serialized=tf.io.parse_tensor(states.SerializeToString(), tf.variant),
        )
    return iterator


def _draws_in(part: tensor_pb2.VariantTensorDataProto) -> Any:
    """Returns the one number of draws in the state of a shuffle, to be read and set; else an empty list."""
    names, name = _names(part), b"epoch_num_random_samples"
    return part.tensors[names.index(name)].int64_val if name in names else []


def _plain_parts(states: tf.Tensor) -> list[tensor_pb2.VariantTensorDataProto]:
    """Returns the parts of an iterator's state without the elements in buffers."""
    return [_with_plain_values(part) for part in _parts(states) if b":buffer::" not in part.metadata]


def _parts(states: tf.Tensor) -> Iterator[tensor_pb2.VariantTensorDataProto]:
    """Yields the parts of an iterator's state, each with the name of its stage and those of its values."""
    with tf.device("CPU"):
        content = tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(states).numpy()).tensor_content
    sizes, place = [], 0
    for _ in range(int(states.shape[0])):  # first the size of each, seven bits a byte
        size, shift = 0, 0
        while content[place] & 0x80:
            size |= (content[place] & 0x7F) << shift
            place, shift = place + 1, shift + 7
        sizes.append(size | content[place] << shift)
        place += 1
    for size in sizes:
        yield tensor_pb2.VariantTensorDataProto.FromString(content[place : place + size])
        place += size


def _names(part: tensor_pb2.VariantTensorDataProto) -> list[bytes]:
    """Returns the names of the values of a part."""
    names: list[bytes] = part.metadata.split(b"@@")[1:]
    return names


def _with_plain_values(part: tensor_pb2.VariantTensorDataProto) -> tensor_pb2.VariantTensorDataProto:
    """Returns the part of a shuffle with its values as numbers, and an empty buffer; others as they are."""
    buffer = part.metadata.endswith(b":buffer@@num_elements")
    if not buffer and b"seed2" not in _names(part):
        return part
    with tf.device("CPU"):
        values = tf.raw_ops.UncompressElement(
            compressed=tf.io.parse_tensor(part.tensors[0].SerializeToString(), tf.variant),
            output_types=[tf.int64] * len(_names(part)),
            output_shapes=[tf.TensorShape([])] * len(_names(part)),
        )
    plain = tensor_pb2.VariantTensorDataProto(type_name=part.type_name, metadata=part.metadata)
    plain.tensors.extend(
        tensor_pb2.TensorProto(
            dtype=tf.int64.as_datatype_enum, tensor_shape={}, int64_val=[0 if buffer else int(value)]
        )
        for value in values
    )
    return plain
