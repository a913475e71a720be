"""How the training steps are executed: what a user may fix, and what the planner leaves as chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from overlap_train._support.arguments import Auto, auto_or, freeze, require_choice, require_flag
from overlap_train._support.keywords import knows_names
from overlap_train._support.numbers import LARGEST, require_count, require_seconds

__all__ = ["Auto", "ExecutionPlan"]

_LOOPS = ("auto", "in_memory", "iterator", "eager")
_KERNELS = ("auto", "keras", "fast")
_MOST_SPLITS = 4096


@knows_names
@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """How `Trainer.fit` executes its steps. Whatever is `"auto"` is chosen, by timing where that pays.

    All choices compute the same steps on the same batches in the same order. They round differently: splits
    and XLA in the last bit of a sum, fast kernels by some 1e-6 of a result's norm. Keras's own graph is
    `batch_splits=1, jit=False, kernels="keras"`.

    Attributes:
        loop: `"in_memory"` holds the arrays as tensors and gathers the batches inside the compiled loop;
            `"iterator"` draws them from a `tf.data` iterator there; `"eager"` runs operation by operation,
            for a debugger. "auto" holds what fits.
        steps_per_call: training steps in one compiled call; "auto" makes calls of `call_s`.
        batch_splits: parts of a batch that run side by side on the cores of a CPU; 1 does not split. A
            number above 1 vouches for custom layers: each row of their outputs has to depend on
            its own row of the inputs only. "auto" splits after `overlap_train.configure()` only.
        jit: whether XLA compiles the steps: the whole loop for arrays in memory, else each step. "auto" does
            what `model.compile(jit_compile=...)` says, and may use XLA for small models on a CPU. XLA draws
            other random numbers, and answers NaN or clamps where TensorFlow reports a label or an index that
            is out of range; layers that draw are therefore never compiled by "auto".
        kernels: `"keras"` computes all as Keras does; `"fast"` runs Conv2D on `overlap_train.conv`, which is
            built if need be, DepthwiseConv2D with its gradient of the filters, BatchNormalization and Adam on
            TensorFlow's fused operations, and LSTM and GRU in loops of fewer operations. "auto" does so on a
            CPU, in models of many parts from the first step on, in others if the steps turn out to be
            faster; with the convolution if it is built already, for shapes on which it is known to be
            faster. Training only; validation is computed as by Keras.
        call_s: how long a call should last, in seconds; progress, interrupts and deliveries wait for its end.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range, or two that exclude each other.
    """

    loop: Literal["auto", "in_memory", "iterator", "eager"] = "auto"
    steps_per_call: int | Auto = "auto"
    batch_splits: int | Auto = "auto"
    jit: bool | Auto = "auto"
    kernels: Literal["auto", "keras", "fast"] = "auto"
    call_s: float = 0.25

    def __post_init__(self) -> None:
        jit = self.jit
        freeze(
            self,
            loop=require_choice("loop", self.loop, _LOOPS),
            steps_per_call=_count_or_auto("steps_per_call", self.steps_per_call),
            batch_splits=_count_or_auto("batch_splits", self.batch_splits, maximum=_MOST_SPLITS),
            jit="auto"
            if isinstance(jit, str) and jit == "auto"
            else require_flag("jit", jit, expected="True, False or 'auto'"),
            kernels=require_choice("kernels", self.kernels, _KERNELS),
            call_s=require_seconds("call_s", self.call_s),
        )
        self._check_together()

    def _check_together(self) -> None:
        """Raise ValueError for two choices that exclude each other."""
        if self.splits and self.jit is True:
            raise ValueError(
                f"batch_splits={self.batch_splits} and jit=True exclude each other: XLA does not run the "
                "parts side by side; leave one of them out"
            )
        if self.kernels == "fast" and self.jit is True:
            raise ValueError(
                "kernels='fast' and jit=True exclude each other: XLA has no custom operations; leave one of "
                "them out"
            )
        if self.loop == "eager" and (self.splits or self.jit is True or self.kernels == "fast"):
            raise ValueError(
                "loop='eager' excludes batch_splits, jit and kernels='fast', which are for compiled loops"
            )

    @property
    def splits(self) -> bool:
        """Whether batches are to be split, by the user's own wish."""
        return self.batch_splits != "auto" and self.batch_splits > 1


def _count_or_auto(name: str, value: Any, *, maximum: int = LARGEST) -> int | Auto:
    expected = "an integer or 'auto'"
    return auto_or(name, value, require_count, minimum=1, maximum=maximum, expected=expected)
