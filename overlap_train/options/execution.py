"""Options of how the training steps are executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from overlap_train._support.arguments import (
    Auto,
    T,
    freeze,
    is_text,
    require_choice,
    require_count,
    require_flag,
)

__all__ = ["Auto", "ExecutionPlan"]

_LOOPS = ("auto", "in_memory", "iterator")
_KERNELS = ("auto", "keras", "fast")
_MOST_SPLITS = 4096
_COUNT: Mapping[str, Any] = {"minimum": 1, "expected": "an integer or 'auto'"}


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """Set how `Trainer.fit` executes its steps.

    What is left at `"auto"` is chosen by rules, the same in every run.

    All choices compute the same steps on the same batches in the same order. They round differently: splits
    and XLA in the last bit of a sum, fast kernels by some 1e-6 of a result's norm. Keras's own graph is
    `batch_splits=1, jit=False, kernels="keras"`.

    Attributes:
        loop: `"in_memory"` holds the arrays as tensors and gathers batches inside the compiled loop.
            `"iterator"` draws them from a `tf.data` iterator there. "auto" holds the arrays if they fit
            `Trainer(in_memory_bytes=...)`.
        steps_per_call: training steps in one compiled call; "auto" makes calls of about 0.25 s.
            Progress, interrupts and callbacks wait for the end of a call.
        batch_splits: parts of a batch that run in parallel on the cores of a CPU; 1 does not split. A
            number above 1 asserts that in custom layers each row of the outputs depends only on its own row
            of the inputs. "auto" splits heavy steps after
            `overlap_train.configure()`.
        jit: whether XLA compiles the steps: the whole loop for arrays in memory, otherwise each step. "auto"
            does what `model.compile(jit_compile=...)` says, and uses XLA in long runs of tiny steps on a CPU.
            XLA draws other random numbers, so "auto" never compiles layers that draw. For a label or an
            index out of range it returns NaN or clamps, where TensorFlow raises.
        kernels: `"keras"` runs Keras's operations. `"fast"` runs Conv2D on `overlap_train.conv`, which is
            built if need be, DepthwiseConv2D with its own filter gradient, and BatchNormalization and Adam on
            TensorFlow's fused operations. "auto" does so on a CPU in runs of 100 steps or more and in models
            of 40 or more such parts, and uses the convolution only if that is built already. Training only;
            validation runs Keras's operations.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of range, or two values exclude each other.
    """

    loop: Literal["auto", "in_memory", "iterator"] = "auto"
    steps_per_call: int | Auto = "auto"
    batch_splits: int | Auto = "auto"
    jit: bool | Auto = "auto"
    kernels: Literal["auto", "keras", "fast"] = "auto"

    def __post_init__(self) -> None:
        freeze(
            self,
            loop=require_choice("loop", self.loop, _LOOPS),
            steps_per_call=_or_auto(require_count, "steps_per_call", self.steps_per_call, **_COUNT),
            batch_splits=_or_auto(
                require_count, "batch_splits", self.batch_splits, maximum=_MOST_SPLITS, **_COUNT
            ),
            jit=_or_auto(require_flag, "jit", self.jit, expected="True, False or 'auto'"),
            kernels=require_choice("kernels", self.kernels, _KERNELS),
        )
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

    @property
    def splits(self) -> bool:
        """Whether `batch_splits` asks for more than one part."""
        return self.batch_splits != "auto" and self.batch_splits > 1


def with_own_operations(plan: ExecutionPlan, model: Any) -> ExecutionPlan:
    """Return a plan with which the steps of a model are Keras's own graph."""
    return replace(plan, batch_splits=1, jit=bool(model.jit_compile), kernels="keras")


def _or_auto(require: Callable[..., T], name: str, value: Any, **options: Any) -> T | Auto:
    return "auto" if is_text(value, "auto") else require(name, value, **options)
