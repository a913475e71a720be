"""Tells owners of signal handlers when this process is forked, before a signal can reach the child.

A child inherits the handlers, and whoever forked it expects that SIGTERM ends it: `multiprocessing.Pool`
sends one and waits. Python drops what arrives between the fork and its own start in the child, so signals
are blocked for as long as that takes.

Owners belong to the main thread, where Python keeps its handlers; any thread may fork.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Protocol

__all__ = ["Owner", "register", "unregister"]

_BLOCKED = (signal.SIGINT, signal.SIGTERM)


class Owner(Protocol):
    """What has installed handlers of signals."""

    def in_child(self) -> None:
        """Put the handlers back; called in the child, on its only thread."""


_owners: list[Owner] = []
_masks = threading.local()


def register(owner: Owner) -> None:
    """Have `owner.in_child` called in each process that is forked from now on."""
    _owners.append(owner)


def unregister(owner: Owner) -> None:
    """End that. Does nothing the second time, nor in a child, which has no owners."""
    if owner in _owners:
        _owners.remove(owner)


def _block() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED) if _owners else None


def _unblock() -> None:
    if _masks.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _begin_child() -> None:
    try:
        while _owners:
            _owners.pop().in_child()  # the newest first: it has replaced the others' handlers
    finally:
        _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_begin_child)
