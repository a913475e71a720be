"""The sizes of TensorFlow's thread pools.

TensorFlow has two pools: inter-op threads run the operations of a graph side by side, intra-op threads
divide one operation. A batch that is split into parts (`_training/splitting.py`) keeps every core busy with
one intra-op thread, and nothing is then lost to dividing small operations. Both pools are sized when
TensorFlow starts and never again, for the whole process. `available_cores` does not import TensorFlow.

Intra-op threads change results: a convolution adds up its gradient in as many parts as there are threads.
Inter-op threads do not, so a deterministic process has one thread an operation.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from overlap_train._support.arguments import require_count, require_flag

_MOST_THREADS = 1 << 16
_repeats = False  # whether `configure(deterministic=True)` has been called in this process

__all__ = [
    "ThreadSettings",
    "available_cores",
    "configure",
    "splits_pay",
    "splits_would_pay",
    "ways_are_fixed",
]


@dataclass(frozen=True, slots=True)
class ThreadSettings:
    """Report the sizes of TensorFlow's thread pools; 0 means TensorFlow's default, all cores.

    Attributes:
        intra_op_threads: threads that may share one operation.
        inter_op_threads: operations that may run at the same time.
        in_force: whether they are what was asked for.
    """

    intra_op_threads: int
    inter_op_threads: int
    in_force: bool = True

    def __str__(self) -> str:
        text = f"TensorFlow uses {self.intra_op_threads or 'its default'} intra-op and "
        text += f"{self.inter_op_threads or 'its default'} inter-op threads"
        return text if self.in_force else f"{text}, not what was asked for"


def configure(
    *,
    cores: int | None = None,
    intra_op_threads: int | None = None,
    inter_op_threads: int | None = None,
    deterministic: bool = False,
) -> ThreadSettings:
    """Size TensorFlow's thread pools so that `Trainer.fit` may split batches over the cores of a CPU.

    Call it once, right after the imports: before the first tensor, layer or dataset. Calling it again with
    the same values does nothing. It is of no use if a GPU does the arithmetic.

    Args:
        cores: number of cores to use; None means those that this process may run on.
        intra_op_threads: threads for one operation; None means 1, which batch splitting needs.
        inter_op_threads: operations at the same time; None means `cores`.
        deterministic: whether a seeded program is to have the same weights bit for bit, whatever `cores`,
            `max_lag`, and the number of validation workers are. It calls TensorFlow's
            `enable_op_determinism`, after which an operation that draws without a seed raises.

    Returns:
        The settings now in force.

    Raises:
        TypeError: a number is not an integer, or `deterministic` is no bool.
        ValueError: a number is below 1, or too large for any machine; or several `intra_op_threads` are to
            be deterministic.

        RuntimeError: TensorFlow has already started, and `deterministic` cannot be had any more.

    Warns:
        RuntimeWarning: TensorFlow has already started, so the pools do not change.
    """
    import tensorflow as tf

    cores = _threads("cores", cores, default=available_cores())
    intra = _threads("intra_op_threads", intra_op_threads, default=1)
    inter = _threads("inter_op_threads", inter_op_threads, default=cores)
    if require_flag("deterministic", deterministic) and intra != 1:
        raise ValueError(
            f"deterministic=True needs intra_op_threads=1; got {intra}: a convolution rounds its gradient "
            "by how many threads share it. Set inter_op_threads, which change no result"
        )
    try:
        tf.config.threading.set_intra_op_parallelism_threads(intra)
        tf.config.threading.set_inter_op_parallelism_threads(inter)
    except RuntimeError as error:
        if deterministic:
            raise RuntimeError(
                "configure(deterministic=True) came too late: TensorFlow has started already. Call it right "
                "after the imports, before the first tensor, layer or dataset is made"
            ) from error
        present = _present(in_force=False)
        warnings.warn(
            f"overlap_train.configure() came too late: TensorFlow has started already. {present}: "
            f"{intra} and {inter}. Call it right after the imports, before the first tensor, layer or "
            "dataset is made",
            RuntimeWarning,
            stacklevel=2,
        )
        return present
    if deterministic:
        global _repeats
        _repeats = True
        tf.config.experimental.enable_op_determinism()
    return _present()


def _threads(name: str, value: int | None, *, default: int) -> int:
    if value is None:
        return default
    expected = "an integer or None"
    return require_count(name, value, minimum=1, maximum=_MOST_THREADS, expected=expected)


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ways_are_fixed() -> bool:
    """Whether the model alone may choose how steps are executed, and neither the machine nor the run."""
    return _repeats


def splits_pay() -> bool:
    """Whether parts of a batch could use cores that single operations, of one thread each, leave idle."""
    present = _present()
    return present.intra_op_threads == 1 and present.inter_op_threads != 1 and available_cores() > 1


def splits_would_pay() -> bool:
    """Whether they could if `configure` had been called: the pools have their default sizes."""
    present = _present()
    if os.environ.get("TF_NUM_INTRAOP_THREADS") or os.environ.get("TF_NUM_INTEROP_THREADS"):
        return False
    return not present.intra_op_threads and not present.inter_op_threads and available_cores() > 1


def _present(*, in_force: bool = True) -> ThreadSettings:
    import tensorflow as tf

    threading = tf.config.threading
    return ThreadSettings(
        threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads(), in_force
    )
