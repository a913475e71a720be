"""How far the training may run ahead of the validation so that nobody can tell (contracts C3 and C4)."""

from __future__ import annotations

from collections.abc import Iterable

import keras

from overlap_train.callbacks.hooks import ordering_hooks
from overlap_train.data.sources import Feed
from overlap_train.validation.policy import ValidationPolicy
from overlap_train.validation.suite import ValidationSuite

__all__ = ["effective_lag"]

_REMEDY = 'ValidationPolicy(on_change="continue") would overlap'


def effective_lag(
    policy: ValidationPolicy,
    feed: Feed,
    suite: ValidationSuite,
    callbacks: Iterable[keras.callbacks.Callback],
) -> tuple[int, str | None]:
    """Returns the lag, and why it is 0 where the policy would allow more."""
    if policy.max_lag == 0 or not suite:
        return policy.max_lag, None
    reason = suite.in_step
    if reason is None and policy.on_change == "rollback":
        reason = _noticed(feed, suite, callbacks)
    return (policy.max_lag, None) if reason is None else (0, reason)


def _noticed(feed: Feed, suite: ValidationSuite, callbacks: Iterable[keras.callbacks.Callback]) -> str | None:
    """Returns by what a rollback would be noticed, or None."""
    for callback in callbacks:
        for hook in ordering_hooks(callback):
            return f"{type(callback).__name__}.{hook} must not run for an epoch that may be undone; {_REMEDY}"
    if not feed.rewindable:
        return (
            f"the training data cannot be rewound (Python makes it, or its pipeline keeps a state); {_REMEDY}"
        )
    if not suite.rewindable:
        return f"the validation data comes from a generator and cannot be rewound; {_REMEDY}"
    return None
