"""The hosts of a cluster, which talk over the strategy's own collectives, and how long they wait there.

A collective of a training step ends on all hosts when the last one has come to it. A host's own wait is the
time from when it has what it gives until it has what all gave; whatever makes a host slow (its cores, its
disk, other programs) shortens its own wait and lengthens those of the others. The time that a message travels
is in all of them alike.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from overlap_train._support.encoding import encoded
from overlap_train.errors import HostMismatchError
from overlap_train.parallel.hosts import Hosts, SlowHost

# Of an epoch; below both, a wait is what hosts that share a machine or a network do to each other.
_PART, _LEAST_S = 0.1, 0.2


def find_slow_host(waits_s: Sequence[float] | npt.NDArray[Any], trained_s: float) -> SlowHost | None:
    """Return the host with the shortest wait, or None if no host stands out.

    It stands out if the others waited longer than it, in the median of them, by 0.2 s and by a tenth of the
    seconds of the epoch's training calls.
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

    @property
    def handles(self) -> list[Any]:
        """The handles of this host's variables; written by steps, and no state of the training."""
        return [part.handle for part in self._strategy.experimental_local_results(self._total)]

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


class EvaluatorTask(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]  # TensorFlow is untyped
    """What `join_cluster` returns on the evaluator of a cluster: its first GPU, or its CPU."""

    def __init__(self) -> None:
        super().__init__("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0")


class ClusterHosts(Hosts):
    """The hosts of a MultiWorkerMirroredStrategy."""

    def __init__(self, strategy: tf.distribute.Strategy, count: int, index: int) -> None:
        super().__init__(count, index, CollectiveWaits(strategy))
        self._strategy = strategy
        self._first = index * len(strategy.extended.worker_devices)
        self._summing: dict[Any, Callable[..., Any]] = {}

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all hosts, in their order."""
        own = np.frombuffer(encoded(value), np.uint8)
        lengths = self._sum_array(np.eye(self.count)[self.index] * len(own)).astype(int)
        parts = np.split(np.zeros(lengths.sum()), np.cumsum(lengths)[:-1])
        parts[self.index] = own.astype(np.float64)
        everything = self._sum_array(np.concatenate(parts)).astype(np.uint8)
        return [json.loads(part.tobytes()) for part in np.split(everything, np.cumsum(lengths)[:-1])]

    def slow_host(self, trained_s: float) -> SlowHost | None:
        """Return the host that the others have waited for since `begin_waits`; the chief's seconds count."""
        table = self.numbers([self.waits.since_mark(), trained_s])
        return find_slow_host(table[:, 0], table[0, 1])

    def numbers(self, own: Sequence[float]) -> npt.NDArray[Any]:
        """Return the numbers of all hosts, a row for each."""
        table = np.zeros((self.count, len(own)))
        table[self.index] = own
        return self._sum_array(table.ravel()).reshape(table.shape)

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums of tensors over all hosts."""
        if not tensors:
            return []
        wide = [t if t.dtype in _SUMMED else tf.cast(t, tf.int64) for t in tensors]
        key = tuple((t.dtype, tuple(t.shape)) for t in wide)
        if key not in self._summing:
            specs = [tf.TensorSpec(t.shape, t.dtype) for t in wide]
            function = tf.function(self._sum_all, autograph=False)
            self._summing[key] = function.get_concrete_function(specs)
        summed = self._summing[key](list(wide))
        return [tf.cast(s, t.dtype) for s, t in zip(summed, tensors, strict=True)]

    def _sum_array(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums float64[n], padded to a power of two so that few functions are traced.

        The first number says where the host is: those that are elsewhere send as many for something else.
        """
        place = _caller()
        tag, size = zlib.crc32(place.encode()), 1 << max(3, len(values).bit_length())
        padded = tf.constant(np.pad(values, (1, size - len(values) - 1), constant_values=tag), tf.float64)
        summed = np.asarray(self.sum([padded])[0])
        if summed[0] != self.count * tag:
            raise HostMismatchError(
                f"host {self.index} is at {place}, and another one is not: code that one host alone runs, "
                "such as a callback, has it do other steps; let all hosts do the same"
            )
        return summed[1 : len(values) + 1]

    def _sum_all(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        def run() -> Any:
            context = tf.distribute.get_replica_context()
            mine = int(tf.get_static_value(context.replica_id_in_sync_group)) == self._first
            # Made here, so that they lie on the replica's device.
            sent = [tf.identity(t) if mine else tf.zeros_like(t) for t in tensors]
            return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in sent]

        result = self._strategy.run(tf.autograph.experimental.do_not_convert(run))
        return [self._strategy.experimental_local_results(value)[0] for value in result]


def _caller() -> str:
    """Return which function asks the other hosts."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(__package__):
        frame = frame.f_back
    return f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"


_SUMMED = (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64)


OWN_ROWS = "_overlap_train_own_rows"
"""The attribute of a strategy under which each host's training data is its own."""


def make_hosts(strategy: tf.distribute.Strategy) -> Hosts:
    """Return the hosts of a strategy (`extended._num_workers`, `extended._id_in_cluster`)."""
    count = int(getattr(strategy.extended, "_num_workers", 1))
    if count == 1:
        return Hosts()
    return ClusterHosts(strategy, count, int(strategy.extended._id_in_cluster))
