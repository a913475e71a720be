"""What the hooks of a callback do, by their code: nothing, count and log, look at the model, or anything.

A callback that keeps and passes on what it is given cannot tell when it is called, and a training cannot tell
that it was. So it may be called late, and need not be called at all where it returns at once. The code is
read with the callback's settings as they are: of `if self.log_every is None: return` only the `return` is.
"""

from __future__ import annotations

import enum

__all__ = ["Doing"]


class Doing(enum.IntEnum):
    """What code does, the least that can be said of it; each includes those before it."""

    NOTHING = 0
    """It returns, whatever it is given."""
    APART = 1
    """It keeps what it is given, or passes it on to what cannot reach the training."""
    TIMES = 2
    """It looks at the clock."""
    LOOKS = 3
    """It reads the model, or files."""
    ENDS = 4
    """It may end the training: `stop_training`, or an exception."""
    ANYTHING = 5
    """It may change the training, or cannot be read."""
