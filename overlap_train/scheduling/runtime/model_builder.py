"""From a Keras model to one that the scheduler can serve: split, profiled, merged, compiled."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from overlap_train._support.arguments import freeze, require_choice, require_count, require_flag, require_real
from overlap_train.scheduling.costs.model import CostModel, Costs, check_costs
from overlap_train.scheduling.graph.devices import Device, Platform
from overlap_train.scheduling.graph.layers import LayerGraph
from overlap_train.scheduling.graph.model_splitting import SplitModel, split_model
from overlap_train.scheduling.runtime.admission import Model
from overlap_train.scheduling.runtime.segments import choose_segments, merge_layers, worth_cutting
from overlap_train.scheduling.runtime.tensorflow_backend import (
    compile_segments,
    profile_layers,
    tensorflow_platform,
)
from overlap_train.zero_copy import as_tensor

__all__ = ["ModelBuilder", "Preparation"]

_MOST_PIECES = 4096

_SEGMENTS = ("auto", "layers", "whole")


@dataclass(frozen=True)
class Preparation:
    """How models are prepared; see `MultiModelScheduler` for the fields."""

    segments: str | int = "auto"
    cut: int = 1
    longest_segment_s: float = float("inf")
    constant_weights: bool = False
    profile: bool | None = None
    zero_copy: bool = False

    def __post_init__(self) -> None:
        profile = self.profile
        if profile is not None:
            profile = require_flag("profile", profile, expected="True, False or None")
        freeze(
            self,
            segments=_checked_segments(self.segments),
            cut=require_count("cut", self.cut, minimum=1, maximum=_MOST_PIECES),
            longest_segment_s=require_real(
                "longest_segment_s", self.longest_segment_s, minimum=0, infinite=True
            ),
            constant_weights=require_flag("constant_weights", self.constant_weights),
            profile=profile,
            zero_copy=require_flag("zero_copy", self.zero_copy),
        )
        if self.cut > 1 and self.segments not in ("auto", "layers"):
            raise ValueError(
                f"cut={self.cut} needs segments='auto' or 'layers'; {self.segments!r} would put the pieces "
                "together again"
            )


class ModelBuilder:
    """Prepares models for the devices of a platform."""

    def __init__(
        self, devices: Platform | Sequence[Device] | None, costs: Costs | None, preparation: Preparation
    ) -> None:
        check_costs(costs)
        self.platform = devices if isinstance(devices, Platform) else tensorflow_platform(devices)
        self.costs = costs if costs is not None else CostModel()
        self._segments, self._cut = preparation.segments, preparation.cut
        self._longest_s = preparation.longest_segment_s
        self._constant_weights = preparation.constant_weights
        kinds = {device.kind for device in self.platform.devices}
        gains = costs is None and (len(kinds) > 1 or self._cut > 1)
        self._profile = gains if preparation.profile is None else preparation.profile
        self._as_tensor = _in_place_tensor if preparation.zero_copy else _host_tensor

    def build(
        self,
        name: str,
        model: Any,
        max_pending: int,
        max_batch: int,
        *,
        input_specs: Sequence[tf.TensorSpec] = (),
    ) -> Model:
        """Compile a model; takes seconds for a large one."""
        split = split_model(model, name=name, input_specs=input_specs, cut=self._cut)
        single = None
        if self._profile and isinstance(self.costs, CostModel):
            single = self._profile_single(split, self.costs)
            only = worth_cutting(split.graph, self.platform, self.costs)
            if len(only) < len(set(split.graph.joins.values())):
                split = split_model(model, name=name, input_specs=input_specs, cut=self._cut, only=only)
                single = None
        graph = single if single is not None and self._segments == "layers" else self._compiled(split)
        # What is one number for a whole batch cannot be divided among the requests in it.
        most = max_batch if split.keeps_rows else 1
        return Model(
            name, graph, functools.partial(split.inputs.flatten, name), split.pack, max_pending, most
        )

    def tensors(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arrays as tensors on the host; in place with `zero_copy`. None stays."""
        return tuple(None if array is None else self._as_tensor(array) for array in arrays)

    def _profile_single(self, split: SplitModel, costs: CostModel) -> LayerGraph:
        single = merge_layers(split.graph, _every(split.graph))
        graph = compile_segments(split, single, self.platform, constant_weights=self._constant_weights)
        costs.add_profile(profile_layers(graph, self.platform))
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
            groups = choose_segments(split.graph, self.platform, self.costs, longest_s=self._longest_s)
        merged = merge_layers(split.graph, groups)
        graph = compile_segments(split, merged, self.platform, constant_weights=self._constant_weights)
        # The first call of a function optimises it, which takes seconds: not in the first request.
        measured = profile_layers(graph, self.platform, repeats=3 if self._profile else 1)
        if isinstance(self.costs, CostModel):
            self.costs.add_profile(measured)
        return graph


def _checked_segments(segments: object) -> str | int:
    if isinstance(segments, str):
        choice: str = require_choice("segments", segments, _SEGMENTS)
        return choice
    expected = f"one of {', '.join(map(repr, _SEGMENTS))} or an integer"
    return require_count("segments", segments, minimum=1, expected=expected)


def _every(graph: LayerGraph) -> list[range]:
    return [range(index, index + 1) for index in range(len(graph))]


def _host_tensor(array: Any) -> tf.Tensor:
    # Without the scope TensorFlow would put it on a GPU, whether or not the first segment runs there.
    with tf.device("/CPU:0"):
        return tf.constant(array)


def _in_place_tensor(array: Any) -> tf.Tensor:
    try:
        return as_tensor(array)
    except (ValueError, TypeError, BufferError):
        return _host_tensor(array)
