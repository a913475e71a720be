"""How many cores and threads there are, and whether they may decide how steps are executed.

TensorFlow has two pools: inter-op threads run the operations of a graph side by side, intra-op threads
divide one operation. A batch that is split into parts (`_training/splitting.py`) keeps every core busy with
one intra-op thread, and nothing is then lost to dividing small operations. `available_cores` does not import
TensorFlow.
"""

from __future__ import annotations

import os

__all__ = ["available_cores", "fix_ways", "splits_pay", "splits_would_pay", "thread_pools", "ways_are_fixed"]

_repeats = False  # whether `configure(deterministic=True)` has been called in this process


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fix_ways() -> None:
    """Let the model alone choose from now on how steps are executed."""
    global _repeats
    _repeats = True


def ways_are_fixed() -> bool:
    """Whether the model alone may choose how steps are executed, and neither the machine nor the run."""
    return _repeats


def splits_pay() -> bool:
    """Whether parts of a batch could use cores that single operations, of one thread each, leave idle."""
    intra, inter = thread_pools()
    return intra == 1 and inter != 1 and available_cores() > 1


def splits_would_pay() -> bool:
    """Whether they could if `configure` had been called: the pools have their default sizes."""
    if os.environ.get("TF_NUM_INTRAOP_THREADS") or os.environ.get("TF_NUM_INTEROP_THREADS"):
        return False
    return not any(thread_pools()) and available_cores() > 1


def thread_pools() -> tuple[int, int]:
    """Return the numbers of intra-op and of inter-op threads; 0 is TensorFlow's default."""
    import tensorflow as tf

    threading = tf.config.threading
    return threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()
