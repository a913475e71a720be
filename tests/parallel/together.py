"""Hosts that are threads of one process: they meet as those of a cluster do, without its collectives."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from overlap_train.parallel.hosts import Hosts

WAIT_S = 60


class ThreadHost(Hosts):
    """One of several hosts, each of which a thread stands for."""

    def __init__(self, index, values, barrier):
        super().__init__(len(values), index)
        self._values, self._barrier = values, barrier

    def gather(self, value):
        self._values[self.index] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()  # nobody writes before all have read
        return values

    def sum(self, tensors):
        return [tf.add_n(each) for each in zip(*self.gather(list(tensors)), strict=True)]

    def numbers(self, own):
        return np.asarray(self.gather([float(value) for value in own]))


def on_hosts(work, count=2):
    """Runs `work(host)` on so many hosts at once; returns what each returned, or the exception it raised."""
    barrier = threading.Barrier(count, timeout=WAIT_S)
    values = [None] * count

    def run(index):
        try:
            return work(ThreadHost(index, values, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))
