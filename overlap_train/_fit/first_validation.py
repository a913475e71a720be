"""The first validation of a model: traced anew if a hook before its first batch has set what its trace holds.

Keras traces the validation with the first batch, behind these hooks; here it is traced before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeAlias

from overlap_train._snapshot import ModelState
from overlap_train._validation.suite import ValidationSuite
from overlap_train._validation.validation_step import TracedWith
from overlap_train.records import ValidationResult

__all__ = ["BuildSuite", "FirstValidation"]

BuildSuite: TypeAlias = Callable[[contextlib.ExitStack], tuple[ModelState, ValidationSuite]]


class FirstValidation:
    """Makes the first validation again where its trace was made too early. On the training thread.

    Args:
        traced_with: what the trace holds; None if Keras would have traced before, too.
        build: traces the validation.
        say: told what was set.
    """

    def __init__(self, traced_with: TracedWith | None, build: BuildSuite, say: Callable[[str], None]) -> None:
        self._traced_with = traced_with
        self._build = build
        self._say = say

    def __call__(self, name: str, most: int | None = None) -> ValidationResult | None:
        """Returns the result of a set for the model as it is, or None if what has been traced will do.

        Args:
            name: of the set, whose `on_test_begin` has been called.
            most: batches that it is to have; None for all.
        """
        traced_with = self._traced_with
        changed = None if traced_with is None or traced_with.validated else traced_with.changed()
        if traced_with is None or changed is None:
            return None
        self.end()
        traced_with.forget_validation()
        self._say(f"{changed} was set before the first validation, which is traced again")
        with contextlib.ExitStack() as resources:
            state, suite = self._build(resources)
            return suite.evaluate(name, state.read(), most)

    def end(self) -> None:
        """Says that the first validation has been made: what is set from now on makes no other trace."""
        if self._traced_with is not None:
            self._traced_with.validated = True
