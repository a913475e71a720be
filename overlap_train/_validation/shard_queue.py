"""What waits for the workers, and how many of them may work at once. It knows no Keras.

Any thread puts jobs in; workers take them in order. The training thread says how many may run beside it, and
may hold new ones back for a moment while it prepares its next call: workers that begin just then would share
Python's lock and the cores with it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Generic, TypeVar

__all__ = ["ShardQueue"]

J = TypeVar("J")

# A forgotten pool is closed by the garbage collector, perhaps on a worker that is about to wait.
_LOOK_AGAIN_S = 60.0


class ShardQueue(Generic[J]):
    """A queue of jobs with a limit to those under way. Thread-safe: one condition guards everything.

    A worker that is woken takes Python's lock from the training thread, so one at a time is: whoever takes a
    job wakes the next if there is more to take. A worker that has done one comes back for another.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[J] = deque()
        self._under_way = 0
        self._most: int | None = None
        self._held_until_s: float | None = None
        self._called = False  # somebody has been woken, and not come yet
        self._watching = 0  # workers that wait for the time to pass
        self._closed = False

    def put(self, job: J) -> bool:
        """Appends a job; returns False, and does not, if the queue has been closed."""
        with self._changed:
            if self._closed:
                return False
            self._jobs.append(job)
            self._wake_one()
        return True

    def take(self) -> J | None:
        """Waits for a job that may begin and returns it; `done` must follow. None: there will be no more."""
        with self._changed:
            while True:
                self._called = False
                held_s = self._held_s()
                open_ = bool(self._jobs) and not self._full
                if open_ and not held_s:
                    self._under_way += 1
                    job = self._jobs.popleft()
                    self._wake_one()
                    return job
                if self._closed and not self._jobs:
                    return None
                if open_:
                    self._watching += 1
                    self._changed.wait(held_s)
                    self._watching -= 1
                else:
                    self._changed.wait(_LOOK_AGAIN_S)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        with self._changed:
            return not self._under_way and not self._jobs

    def done(self) -> None:
        """Says that a job which was taken has ended, and that its worker will take again."""
        with self._changed:
            self._under_way -= 1

    def admit(self, most: int | None, *, after_s: float = 0.0) -> None:
        """Lets waiting jobs begin, so that up to `most` are under way; None: as many as there are workers.

        Jobs under way are not stopped.
        """
        with self._changed:
            self._most = most
            held_s = min(after_s, self._held_s())
            self._held_until_s = time.monotonic() + held_s if held_s else None
            if self._jobs and not self._full:
                self._call()  # even if one watches, since the time may be another

    def hold(self, seconds: float) -> None:
        """Lets no job begin before `admit`, or before this time has passed."""
        with self._changed:
            self._held_until_s = time.monotonic() + seconds

    def close(self) -> list[J]:
        """Lets no further job begin, takes out those that wait, and sends the workers home."""
        with self._changed:
            self._closed = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        return left

    @property
    def _full(self) -> bool:
        return self._most is not None and self._under_way >= self._most

    def _wake_one(self) -> None:
        """Wakes a worker for what may begin, unless one watches for the time at which it may."""
        if self._jobs and not self._full and not (self._watching and self._held_s()):
            self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._changed.notify()

    def _held_s(self) -> float:
        """Seconds for which jobs are still to be held back."""
        if self._held_until_s is None:
            return 0.0
        return max(0.0, self._held_until_s - time.monotonic())
