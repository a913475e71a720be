"""From a Keras model to one that the scheduler can serve: split, profiled, merged, compiled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._support.arguments import require_choice, require_flag
from overlap_train._support.numbers import require_count, require_real
from overlap_train.scheduling.costs.model import CostModel, Costs
from overlap_train.scheduling.graph.devices import Platform
from overlap_train.scheduling.graph.layers import LayerGraph
from overlap_train.scheduling.graph.model_splitting import SplitModel, split_model
from overlap_train.scheduling.runtime.admission import Model
from overlap_train.scheduling.runtime.segments import choose_segments, merge_layers, worth_cutting
from overlap_train.scheduling.runtime.tensorflow_backend import compile_segments, profile_layers

__all__ = ["ModelBuilder", "require_cut"]

_MOST_PIECES = 4096

_SEGMENTS = ("auto", "layers", "whole")


class ModelBuilder:
    """Holds how models are prepared; see `MultiModelScheduler` for the arguments.

    Raises:
        ValueError: an unknown `segments`, or `cut` with one that would put pieces together again.
    """

    def __init__(
        self,
        platform: Platform,
        costs: Costs,
        *,
        segments: str | int = "auto",
        cut: int = 1,
        longest_s: float = float("inf"),
        constant_weights: bool = False,
        profile: bool = False,
        zero_copy: bool = False,
    ) -> None:
        segments = _checked_segments(segments)
        cut = require_cut(cut)
        if cut > 1 and segments not in ("auto", "layers"):
            raise ValueError(
                f"cut={cut} needs segments='auto' or 'layers'; {segments!r} would put the pieces "
                "together again"
            )
        self._platform = platform
        self._costs = costs
        self._segments = segments
        self._cut = cut
        self._longest_s = require_real("longest_segment_s", longest_s, minimum=0, infinite=True)
        self._constant_weights = require_flag("constant_weights", constant_weights)
        self._profile = profile
        self._as_tensor = _zero_copy_as_tensor() if require_flag("zero_copy", zero_copy) else _host_tensor

    def build(
        self,
        name: str,
        model: Any,
        max_pending: int,
        max_batch: int,
        *,
        input_specs: Sequence[tf.TensorSpec] = (),
    ) -> Model:
        """Compiles a model; takes seconds for a large one.

        Raises:
            ValueError: the model cannot be split, see `split_model`.
        """
        split = split_model(model, name=name, input_specs=input_specs, cut=self._cut)
        single = None
        if self._profile and isinstance(self._costs, CostModel):
            single = self._profile_single(split, self._costs)
            only = worth_cutting(split.graph, self._platform, self._costs)
            if len(only) < len(set(split.graph.joins.values())):
                split = split_model(model, name=name, input_specs=input_specs, cut=self._cut, only=only)
                single = None
        graph = single if single is not None and self._segments == "layers" else self._compiled(split)
        dtypes = [spec.dtype.as_numpy_dtype for spec in split.input_specs]
        structure = getattr(model, "_outputs_struct", None)

        def flatten(x: Any) -> tuple[Any, ...]:
            return _flatten(name, model, x, dtypes)

        def pack(outputs: tuple[Any, ...]) -> Any:
            if structure is None:
                return outputs[0] if len(outputs) == 1 else list(outputs)
            return keras.tree.pack_sequence_as(structure, list(outputs))

        return Model(name, graph, flatten, pack, max_pending, max_batch)

    def tensors(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arrays as tensors on the host; in place with `zero_copy`."""
        return tuple(self._as_tensor(array) for array in arrays)

    def _profile_single(self, split: SplitModel, costs: CostModel) -> LayerGraph:
        single = merge_layers(split.graph, _every(split.graph))
        graph = compile_segments(split, single, self._platform, constant_weights=self._constant_weights)
        costs.add_profile(profile_layers(graph, self._platform))
        return graph

    def _compiled(self, split: SplitModel) -> LayerGraph:
        every = _every(split.graph)
        if self._segments == "whole":
            groups = [range(len(split.graph))]
        elif isinstance(self._segments, int):
            pieces = min(self._segments, len(every))
            cuts = [round(len(every) * number / pieces) for number in range(pieces + 1)]
            groups = [range(begin, end) for begin, end in itertools.pairwise(cuts)]
        elif self._segments == "layers":
            groups = every
        else:
            groups = choose_segments(split.graph, self._platform, self._costs, longest_s=self._longest_s)
        merged = merge_layers(split.graph, groups)
        graph = compile_segments(split, merged, self._platform, constant_weights=self._constant_weights)
        # The first call of a function optimises it, which takes seconds: not in the first request.
        measured = profile_layers(graph, self._platform, repeats=3 if self._profile else 1)
        if isinstance(self._costs, CostModel):
            self._costs.add_profile(measured)
        return graph


def require_cut(cut: object) -> int:
    """Returns `cut` as an int, or raises TypeError or ValueError."""
    return require_count("cut", cut, minimum=1, maximum=_MOST_PIECES)


def _checked_segments(segments: object) -> str | int:
    if isinstance(segments, str):
        choice: str = require_choice("segments", segments, _SEGMENTS)
        return choice
    expected = f"one of {', '.join(map(repr, _SEGMENTS))} or an integer"
    return require_count("segments", segments, minimum=1, expected=expected)


def _every(graph: LayerGraph) -> list[range]:
    return [range(index, index + 1) for index in range(len(graph))]


def _flatten(name: str, model: Any, x: Any, dtypes: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(x, dict) and not isinstance(getattr(model, "_inputs_struct", None), dict):
        x = [x[key] for key in model.input_names]
    flat = keras.tree.flatten(x)
    if len(flat) != len(dtypes):
        raise ValueError(f"{name!r} takes {len(dtypes)} inputs, got {len(flat)}")
    arrays = tuple(np.asarray(value, dtype) for value, dtype in zip(flat, dtypes, strict=True))
    lengths = {array.shape[:1] for array in arrays}
    if len(lengths) != 1 or lengths == {()} or lengths == {(0,)}:
        raise ValueError(
            f"{name!r}: inputs need one batch dimension of the same size above 0, got shapes "
            f"{[array.shape for array in arrays]}"
        )
    return arrays


def _host_tensor(array: Any) -> tf.Tensor:
    # Without the scope TensorFlow would put it on a GPU, whether or not the first segment runs there.
    with tf.device("/CPU:0"):
        return tf.constant(array)


def _zero_copy_as_tensor() -> Any:
    try:
        from overlap_train.zero_copy import as_tensor  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return _host_tensor

    def in_place(array: Any) -> Any:
        try:
            return as_tensor(array)
        except (ValueError, TypeError, BufferError):
            return _host_tensor(array)

    return in_place
