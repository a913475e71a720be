"""Which host the others wait for: each one's seconds inside the collectives of its training steps.

A collective ends on all hosts when the last one has come to it. A host's own wait is the time from when it
has what it gives until it has what all gave; whatever makes a host slow (its cores, its disk, other
programs) shortens its own wait and lengthens those of the others. The time that a message travels is in all
of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

__all__ = ["CollectiveWaits", "SlowHost", "find_slow_host"]

# Of an epoch; below both, a wait is what hosts that share a machine or a network do to each other.
_PART, _LEAST_S = 0.1, 0.2


class SlowHost(NamedTuple):
    """The host that the others waited for, and for how many seconds."""

    host: int
    seconds: float


def find_slow_host(waits_s: Sequence[float] | npt.NDArray[Any], trained_s: float) -> SlowHost | None:
    """Return the host that the others waited for, or None if no host stands out.

    It is the one with the shortest wait. It stands out if the others waited longer than it, in the median
    of them, by 0.2 s and by a tenth of the epoch.

    Args:
        waits_s: seconds that each host has waited in collectives, float[hosts].
        trained_s: seconds of the epoch's training calls.
    """
    waits = np.asarray(waits_s, float)
    if len(waits) < 2:
        return None
    host = int(np.argmin(waits))
    seconds = float(np.median(np.delete(waits, host)) - waits[host])
    return SlowHost(host, seconds) if seconds > max(_LEAST_S, _PART * trained_s) else None


class CollectiveWaits:
    """Adds up how long this host's first replica has waited in collectives, inside the compiled steps.

    The times are those at which the host's CPU sees the tensors; where a GPU makes them, that is when its
    work has been queued, so that there a slow input shows and a slow card does not.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """Make the variable that holds the sum; on all hosts at the same point of the program."""
        with strategy.scope():
            self._total = tf.Variable(
                0.0,
                dtype=tf.float64,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name="collective_wait_s",
            )
        self._strategy = strategy
        self._marked_s = 0.0

    def around(self, tensors: Sequence[Any], reduce: Callable[[], list[Any]]) -> list[Any]:
        """Return what `reduce` makes of tensors, and count how long that takes. Called in a replica."""
        before = _time_after(tensors)
        reduced = reduce()
        self._total.assign_add(_time_after(reduced) - before)
        return reduced

    def mark(self) -> None:
        """Make `since_mark` begin anew. Called on the training thread, as the next."""
        self._marked_s = self._read_s()

    def since_mark(self) -> float:
        """Return the seconds waited since `mark`, without asking the other hosts."""
        return self._read_s() - self._marked_s

    def _read_s(self) -> float:
        return float(self._strategy.experimental_local_results(self._total)[0].read_value())


def _time_after(tensors: Sequence[Any]) -> tf.Tensor:
    """Return the time, float64[] in seconds, at which all of the tensors are there."""
    with tf.control_dependencies(list(tensors)), tf.device("/device:CPU:0"):
        return tf.timestamp(name="overlap_train_clock")  # known to the search for effects by its name
