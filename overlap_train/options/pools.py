"""The sizes of TensorFlow's thread pools, set when it starts and never again, for the whole process.

Intra-op threads change results: a convolution adds up its gradient in as many parts as there are threads.
Inter-op threads do not, so a deterministic process has one thread an operation.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from overlap_train._support.arguments import require_count, require_flag
from overlap_train.options.threads import available_cores, fix_ways, thread_pools, ways_are_fixed

__all__ = ["ThreadSettings", "configure"]

_MOST_THREADS = 1 << 16


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
        # Another number than it may be raises wherever TensorFlow has started.
        if deterministic and not ways_are_fixed():
            tf.config.threading.set_inter_op_parallelism_threads(inter + 1)
        tf.config.threading.set_intra_op_parallelism_threads(intra)
        tf.config.threading.set_inter_op_parallelism_threads(inter)
    except RuntimeError as error:
        if deterministic:
            raise RuntimeError(
                "configure(deterministic=True) came too late: TensorFlow has started already. Call it right "
                "after the imports, before the first tensor, layer or dataset is made"
            ) from error
        present = ThreadSettings(*thread_pools(), in_force=False)
        warnings.warn(
            f"overlap_train.configure() came too late: TensorFlow has started already. {present}: "
            f"{intra} and {inter}. Call it right after the imports, before the first tensor, layer or "
            "dataset is made",
            RuntimeWarning,
            stacklevel=2,
        )
        return present
    if deterministic:
        fix_ways()
        tf.config.experimental.enable_op_determinism()
    return ThreadSettings(*thread_pools())


def _threads(name: str, value: int | None, *, default: int) -> int:
    if value is None:
        return default
    expected = "an integer or None"
    return require_count(name, value, minimum=1, maximum=_MOST_THREADS, expected=expected)
