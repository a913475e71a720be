"""Threads that run one at a time, in an order that a seed decides, on a clock that the scheduler moves.

A simulated thread is a greenlet: all run on one thread of the system, which switches between them a hundred
times faster than Python switches threads, and what is local to a thread is simulated too. The thread that
runs may have to let another one run at each `point`: before each statement of the code under simulation (see
`points`) and in each operation of a lock, a condition, an event or a future. The clock stands still while any
thread can run, and then moves to the next deadline. So the same seed gives the same schedule.
"""

from __future__ import annotations

import builtins
import concurrent.futures._base as futures
import functools
import importlib.util
import itertools
import math
import random
import sys
import threading as real_threading
import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import greenlet

_MOST_SWITCHES = 100_000
_EARLY_S = 0.3  # a deadline this near may pass while other threads could run, as on a busy machine


class Hang(AssertionError):
    """No thread can run, or the clock has passed what any schedule may take."""


class Abandoned(BaseException):
    """Ends a thread of a simulation that is over."""


class Waiter:
    """What a thread waits for: to be woken, or for a deadline; perhaps a signal may come meanwhile."""

    __slots__ = ("deadline", "is_late", "takes_signals", "woken")

    def __init__(self, deadline: float | None, *, takes_signals: bool = True) -> None:
        self.deadline, self.takes_signals = deadline, takes_signals
        self.woken = self.is_late = False


class Task:
    """A simulated thread, from its start to its end."""

    def __init__(self, thread: Any, weight: int, carrier: greenlet.greenlet) -> None:
        self.thread, self.weight, self.carrier = thread, weight, carrier
        self.waiter: Waiter | None = None


class Scheduler:
    """Decides which thread runs, and when a signal comes to the main one.

    Args:
        seed: of the decisions.
        limit_s: how far the clock may go.
        signals: numbers of switches of threads, in their order, after which `on_signal` is called on the
            main thread, wherever that is; or names of functions in which it is called.
        kill_at: the number of switches after which `error` ends everything.
    """

    def __init__(
        self,
        seed: Any,
        *,
        limit_s: float = 55.0,
        signals: tuple[int | str, ...] = (),
        kill_at: float = math.inf,
    ) -> None:
        self.random = random.Random(seed)
        self._uniform = self.random.random
        self._mean = self.random.choice((3, 10, 40, 160))  # statements between two switches
        self._hits = self.random.choice((0.05, 0.3))  # of the statements where an aimed signal may come
        self.now = self._begin = 1000.0
        self._limit_s, self.signals = limit_s, list(signals)
        self._most_switches = min(kill_at, _MOST_SWITCHES)
        self.on_signal: Callable[[], bool] = lambda: True  # whether the signal is wanted
        self.most_threads = math.inf  # that the system allows to be started
        self.cpu_s = 0.0
        self.tasks: list[Task] = []
        self.main = self.current = self._new_task(SimpleNamespace(name="MainThread"), greenlet.getcurrent())
        self.switches, self.order = 0, []  # the names of the threads that ran one after another
        self.error: BaseException | None = None
        self.is_over = False
        self._take_aim()
        self._draw()

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function on the main thread, and have the others end behind it."""
        global _active, _aim, _left
        _active = self
        try:
            result = function()
            while len(self.tasks) > 1:
                self.block(Waiter(self.now + 1.0))
            return result
        except BaseException:
            if self.error is None:
                raise
            raise self.error from None
        finally:
            self.is_over = True
            while len(self.tasks) > 1:
                self._hand_to(next(task for task in self.tasks if task is not self.main))
            _active, _aim, _left = None, None, itertools.repeat(None)
            _show()

    def hit(self) -> None:
        """Perhaps have the next signal come: the running thread is in the function that it is meant for."""
        if self.current is self.main and not self.is_over and self.random.random() < self._hits:
            aim = self.signals.pop(0)
            self._take_aim()
            if not self.on_signal():
                self.signals.insert(0, aim)
                self._take_aim()

    def signal_now(self) -> None:
        """Have one more signal come, as soon as the main thread runs."""
        self.signals.insert(0, 0)
        self._take_aim()

    def pause(self, *, takes_signals: bool) -> None:
        """Let another thread run, or the same one go on."""
        self._draw()
        if self.is_over:
            raise Abandoned
        if takes_signals and self.signals and self.current is self.main:
            self._deliver_signals()
        self._hand_to(self._choose())
        if self.is_over:
            raise Abandoned

    def block(self, waiter: Waiter) -> bool:
        """Have the running thread wait; return whether it has been woken before its deadline."""
        me, outer = self.current, self.current.waiter
        me.waiter = waiter
        try:
            self._check()
            while True:
                self._hand_to(self._choose())
                self._check()
                if me is self.main and waiter.takes_signals and self._is_signal_due():
                    me.waiter = None
                    self._deliver_signals()
                    me.waiter = waiter
                if waiter.woken or waiter.is_late:
                    return waiter.woken
        finally:
            me.waiter = outer

    def start(self, thread: Thread) -> None:
        """Begin a thread, which runs when it is chosen."""
        self.pause(takes_signals=True)
        carrier = _idle.pop() if _idle else _Carrier()
        carrier.job = self, self._new_task(thread, carrier)
        self.pause(takes_signals=True)

    def end(self, task: Task) -> greenlet.greenlet:
        """Take a thread out that has ended, and return what carries the one that runs next."""
        self.tasks.remove(task)
        self.current = self.main if self.is_over else self._choose()
        self.order.append(self.current.thread.name)
        return self.current.carrier

    def fail(self, error: BaseException) -> None:
        """End the simulation with an error, which the main thread raises."""
        self.error, self.is_over = self.error or error, True

    def _new_task(self, thread: Any, carrier: greenlet.greenlet) -> Task:
        task = Task(thread, self.random.choice((1, 1, 8)), carrier)
        self.tasks.append(task)
        return task

    def _draw(self) -> None:
        """Draw how many points the running thread passes before it may have to let another one run."""
        global _left
        _left = itertools.repeat(None, int(-math.log(1.0 - self._uniform()) * self._mean))
        if _aim is None:
            builtins._simulation_left = _left

    def _check(self) -> None:
        if self.is_over:
            raise Abandoned

    def _choose(self) -> Task:
        """Return the thread that runs next; the main one when the simulation has failed."""
        self.switches += 1
        if self.switches > self._most_switches:
            killed = self.switches < _MOST_SWITCHES
            self.fail(Killed() if killed else Hang("the threads go round and round"))
            return self.main
        ready = self._ready()
        if not ready or self._uniform() < 0.05:
            self._pass_deadline(must=not ready)
            ready = self._ready() or [self.main]
        if len(ready) == 1:
            return ready[0]
        share = self._uniform() * sum([task.weight for task in ready])
        for task in ready:
            share -= task.weight
            if share < 0:
                return task
        return ready[-1]

    def _ready(self) -> list[Task]:
        ready = [
            task for task in self.tasks if (waits := task.waiter) is None or waits.woken or waits.is_late
        ]
        is_called = self.signals and self._is_signal_due() and self.main not in ready
        if is_called and self.main.waiter.takes_signals:
            ready.append(self.main)
        return ready

    def _pass_deadline(self, *, must: bool) -> None:
        """Move the clock to the next deadline."""
        waiters = [w for task in self.tasks if (w := task.waiter) is not None and not (w.woken or w.is_late)]
        late = min((w for w in waiters if w.deadline is not None), key=lambda w: w.deadline, default=None)
        if late is None or late.deadline > self._begin + self._limit_s:
            if must:
                where = ", ".join(f"{task.thread.name} waits" for task in self.tasks)
                what = "no thread can run" if late is None else f"{self._limit_s:g} s are over"
                self.fail(Hang(f"{what}: {where}"))
        elif must or late.deadline <= self.now + _EARLY_S:
            self.now, late.is_late = max(self.now, late.deadline), True

    def _hand_to(self, task: Task) -> None:
        if task is not self.current:
            self.order.append(task.thread.name)
            self.current = task
            task.carrier.switch()

    def _is_signal_due(self) -> bool:
        first = self.signals[0] if self.signals else None
        return isinstance(first, int) and self.switches >= first

    def _deliver_signals(self) -> None:
        while self._is_signal_due():
            self.signals.pop(0)
            self._take_aim()
            if not self.on_signal():
                self.signals.insert(0, self.switches + 10)
                self._take_aim()

    def _take_aim(self) -> None:
        global _aim
        _aim = self.signals[0] if self.signals and isinstance(self.signals[0], str) else None
        _show()


class Killed(BaseException):
    """The process has been killed."""


class _Carrier(greenlet.greenlet):
    """A greenlet that runs one simulated thread after another."""

    job: Any = None

    def run(self) -> None:
        while True:
            (scheduler, task), self.job = self.job, None
            try:
                if not scheduler.is_over:
                    task.thread.run()
            except Abandoned:
                pass
            except BaseException as error:  # of which Python would print a trace
                scheduler.fail(error)
            task.waiter = None
            _idle.append(self)
            following = scheduler.end(task)
            del scheduler, task
            following.switch()


_idle: list[_Carrier] = []
_active: Scheduler | None = None
_aim: str | None = None  # the function in which the next signal is to come
_left: Iterable[None] = itertools.repeat(None)  # an item for each point that the running thread may pass


def _show() -> None:
    """Have the points of the code under simulation (see `points`) take an item each, or call `point`."""
    builtins._simulation_left = _left if _aim is None else ()


def point() -> None:
    """Perhaps have a signal come, or let another thread run if no item is left."""
    if _aim is not None and sys._getframe(1).f_code.co_name == _aim:
        running().hit()
    for _ in _left:
        return
    running().pause(takes_signals=True)


_show()


def running() -> Scheduler:
    """Return the simulation that is under way."""
    assert _active is not None
    return _active


def sleep(seconds: float) -> None:
    """Have the running thread compute or wait for a time."""
    scheduler = running()
    scheduler.block(Waiter(scheduler.now + seconds))


class Lock:
    """`threading.Lock`; conditions and events are Python's own, made of it."""

    takes_signals = True

    def __init__(self) -> None:
        self._is_locked = False
        self._waiters: list[Waiter] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        for _ in _left:
            break
        else:
            running().pause(takes_signals=False)  # a signal that raised here would be Python's own to survive
        if self._is_locked and not self._acquire_late(blocking, timeout):
            return False
        self._is_locked = True
        return True

    def _acquire_late(self, blocking: bool, timeout: float) -> bool:
        scheduler = running()
        deadline = None if timeout < 0 else scheduler.now + timeout
        while self._is_locked:
            if not blocking or not self._wait(scheduler, deadline, takes_signals=self.takes_signals):
                return False
        return True

    def _wait(self, scheduler: Scheduler, deadline: float | None, *, takes_signals: bool) -> bool:
        waiter = Waiter(deadline, takes_signals=takes_signals)
        self._waiters.append(waiter)
        try:
            return scheduler.block(waiter)
        finally:
            if not waiter.woken:
                self._waiters.remove(waiter)

    def release(self) -> None:
        if not self._is_locked:
            if _active is None or _active.is_over:
                raise Abandoned  # in a wait that was about to take the lock again
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._waiters:
            for waiter in self._waiters:
                waiter.woken = True
            self._waiters.clear()
        for _ in _left:
            break
        else:
            running().pause(takes_signals=False)

    def _acquire_restore(self, _: None) -> None:
        """Take the lock again behind a wait; to survive a signal that raises here is Python's own task."""
        while not self.acquire(blocking=False):
            self._wait(running(), None, takes_signals=False)

    def locked(self) -> bool:
        return self._is_locked

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """`threading.RLock`. Futures take several of them in a row, which no signal must cut short."""

    takes_signals = False

    def __init__(self) -> None:
        super().__init__()
        self._owner: Task | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _active.current
        if self._owner is not me:
            if not Lock.acquire(self, blocking, timeout):
                return False
            self._owner = me
        self._count += 1
        return True

    __enter__ = acquire

    def release(self) -> None:
        if self._owner is not _active.current:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            Lock.release(self)

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        Lock.release(self)
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count

    def _is_owned(self) -> bool:
        return self._owner is _active.current


class Local:
    """`threading.local`."""

    __slots__ = ("_of_tasks",)

    def __init__(self) -> None:
        object.__setattr__(self, "_of_tasks", weakref.WeakKeyDictionary())

    @property
    def __dict__(self) -> dict[str, Any]:
        return self._of_tasks.setdefault(running().current, {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


class Thread:
    """`threading.Thread`."""

    ident: int | None = None

    def __init__(
        self, target: Callable[..., Any], name: str, args: tuple[Any, ...] = (), *, daemon: bool = False
    ) -> None:
        self.name, self.daemon = name, daemon
        self._main: Any = functools.partial(target, *args)
        self._over = threading.Event()

    def start(self) -> None:
        scheduler = running()
        scheduler.most_threads -= 1
        if scheduler.most_threads < 0:
            raise RuntimeError("can't start new thread")
        self.ident = id(self)
        scheduler.start(self)

    def run(self) -> None:
        main, self._main = self._main, None
        main()
        del main
        self._over.set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._over.is_set()


def _simulated_threading() -> Any:
    """Return a copy of Python's module whose locks and threads are simulated."""
    spec = importlib.util.spec_from_file_location("simulated_threading", real_threading.__file__)
    module: Any = importlib.util.module_from_spec(spec)
    with mock.patch("os.register_at_fork"):  # in a fork its threads would have gone
        spec.loader.exec_module(module)
    module.Lock, module.local = Lock, Local
    module._allocate_lock = Lock
    module.Condition.__enter__ = lambda self: self.acquire()  # its lock's own
    module.Condition.__exit__ = lambda self, *_: self.release()
    module.RLock, module.Thread, module._time = RLock, Thread, lambda: running().now
    module.current_thread = lambda: running().current.thread
    module.main_thread = lambda: running().main.thread
    module.get_ident = lambda: id(running().current)
    return module


threading = _simulated_threading()
_now = lambda: running().now  # noqa: E731
time = SimpleNamespace(monotonic=_now, perf_counter=_now, process_time=lambda: running().cpu_s, sleep=sleep)


def simulate_futures() -> None:
    """Make `concurrent.futures` use simulated locks, and order futures by their age and not their address."""
    numbers, begin = itertools.count(), futures.Future.__init__

    def begin_numbered(self: Any) -> None:
        self.number = next(numbers)
        begin(self)

    futures.Future.__init__ = begin_numbered
    futures.Future.__hash__ = lambda self: self.number
    futures.id = lambda future: future.number
    futures.threading, futures.time = threading, time
