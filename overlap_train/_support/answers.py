"""What `Trainer.explain` and `Trainer.verify` answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlap_train._support.printing import html_table
from overlap_train._support.reasons import Reason

if TYPE_CHECKING:  # which imports NumPy
    from overlap_train._support.differences import Difference


@dataclass(frozen=True, slots=True)
class Verification:
    """Say whether a fit has Keras's results; `Trainer.verify` returns it. Its text is the verdict.

    Attributes:
        equal: whether everything is equal bit for bit or up to rounding, a relative difference of 1e-4.
        verdict: a sentence: equal, and by how much not bit for bit; or the first place that differs; or
            that it cannot be told, as two runs of Keras differ too.
        differences: where the two differ by more than rounding, or by rounding if nothing else does, in the
            order in which it happened, without those in which two runs of Keras differ too. Each has a
            `place`, the value by Keras (`first`) and overlapped (`second`), and a `size`, relative, infinite
            for what is no number.
        messages: what the overlapped fit said of validations in step.
        keras_s: seconds of the fit by Keras.
        overlapped_s: seconds of the overlapped fit.
    """

    equal: bool
    verdict: str
    differences: tuple[Difference, ...]
    messages: tuple[str, ...]
    keras_s: float
    overlapped_s: float

    def __str__(self) -> str:
        return self.verdict


@dataclass(frozen=True, repr=False)
class Explanation:
    """Describe what a `fit` would do; `Trainer.explain` returns it.

    Attributes:
        validates: whether there is anything to validate.
        max_lag: how many epochs training may run ahead of a validation; 0 is in step.
        reasons: why training would wait for each validation, and what would change that.
        plan: how the steps would be executed.
        steps_per_epoch: training steps of an epoch; None if they are not known before the data has been read.
        workers: the largest number of validation threads.
        snapshot_bytes: bytes of one snapshot: weights, optimizer, and other state that it holds.
        data_bytes: bytes of the training data held as tensors; 0 if it is streamed.
        tracing_s: seconds that it took to trace and build everything.
        messages: the messages of the fit before its first step.
    """

    validates: bool
    max_lag: int
    reasons: tuple[Reason, ...]
    plan: str
    steps_per_epoch: int | None
    workers: int
    snapshot_bytes: int
    data_bytes: int
    tracing_s: float
    messages: tuple[str, ...] = ()

    @property
    def overlaps(self) -> bool:
        """Whether epochs would be validated while later ones are trained."""
        return self.validates and self.max_lag > 0

    @property
    def in_step(self) -> str | None:
        """The reasons in one text, or that there is nothing to validate; None if it overlaps."""
        if not self.validates:
            return "there is nothing to validate: no validation_data, validation_split or functions"
        return "\n".join(map(str, self.reasons)) or None

    def _lines(self) -> list[tuple[str, str]]:
        """Return what there is to say, by what it is about."""
        lines = [("in step", text) for text in map(str, self.reasons)] or [("in step", str(self.in_step))]
        if self.overlaps:
            ahead, workers = _plural(self.max_lag, "epoch"), _plural(self.workers, "worker")
            lines = [("overlaps", f"trains up to {ahead} ahead of the validation, with at most {workers}")]
        steps = "an epoch ends with the data"
        if self.steps_per_epoch is not None:
            steps = f"{_plural(self.steps_per_epoch, 'step')} an epoch"
        snapshots = self.max_lag + 1 if self.overlaps else 1
        memory = (
            f"{self.snapshot_bytes / 2**20:.3g} MiB a snapshot, at most {snapshots} of them; "
            f"{self.data_bytes / 2**20:.3g} MiB of training data held as tensors"
        )
        return [*lines, ("plan", f"{self.plan}; {steps}"), ("memory", memory)]

    def __str__(self) -> str:
        return "\n".join(f"{about}: {text}" for about, text in self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table([], [(about, text) for about, text in self._lines()])


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
