"""Runners whose validations a test ends, and suites of them."""

from __future__ import annotations

from concurrent.futures import Future

from overlap_train._validation.pending import NamedRunner, Runner
from overlap_train._validation.suite import ValidationSuite
from overlap_train.records import ShardOutcome, Span, ValidationResult


class EndedByTest(Runner):
    """A runner whose validations end when the test says so."""

    runs_python = False

    def __init__(self):
        self.futures = {}

    def start(self, snapshot):
        self.futures[snapshot.epoch] = future = Future()
        return [future]

    def end(self, epoch, value=0.5):
        """Ends the validation of an epoch with a loss, or with an exception."""
        if isinstance(value, BaseException):
            self.futures[epoch].set_exception(value)
            return
        span = Span("validate", "validation-0", 1.0, 2.0, epoch)
        self.futures[epoch].set_result(ShardOutcome(ValidationResult({"loss": value}), span))


def suite_of(*runners, every=1, **options) -> ValidationSuite:
    """Returns a suite of sets called "", "1", "2", each of which validates one epoch in so many."""
    names = ("", *map(str, range(1, len(runners))))
    due = (lambda epoch: (epoch + 1) % every == 0) if every else (lambda epoch: False)
    return ValidationSuite(
        [NamedRunner(name, runner, due) for name, runner in zip(names, runners, strict=True)], **options
    )
