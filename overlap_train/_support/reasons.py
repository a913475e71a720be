"""Why a training waits for its validations: a few kinds of reasons, each with an identifier to search for.

`docs/troubleshooting.md` explains each in a section whose anchor is the identifier. Its sentence and remedies
come from this table by `python -m tests.docs.reasons`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of reasons: the sentence of a message, and what to do instead."""

    sentence: str
    remedies: tuple[str, ...]


_CONTINUE = 'pass ValidationPolicy(on_change="continue")'
_SAFE = "set overlap_safe = True on the callback if it only watches"

KINDS = {
    "callback-acts": Kind(
        "{} must not run for an epoch that may be undone",
        (
            "move its work to on_epoch_end",
            "wrap the callback in overlap_train.EpochOnly to leave out its batch hooks",
            _SAFE,
            _CONTINUE,
        ),
    ),
    "callback-validates": Kind(
        "a callback acts inside the validation: {}", ("move its work to on_test_end", _SAFE)
    ),
    "data-follows": Kind(
        "the data depends on the training: {}",
        ("read it in the model or in preprocess", "give the data a copy of its own", _CONTINUE),
    ),
    "data-once": Kind(
        "the data could not be read again after a rollback: {}",
        (
            "pass arrays or a tf.data pipeline without Python",
            "raise ValidationPolicy(keep_bytes=...)",
            "set overlap_safe = True on the callback if it changes nothing",
            _CONTINUE,
        ),
    ),
    "data-shared": Kind(
        "it matters who draws first: {}",
        ("give the callback a dataset of its own", "set overlap_safe = True if it draws nothing", _CONTINUE),
    ),
    "function-model": Kind(
        "an evaluation function needs the model itself: {}",
        ("pass EvaluationFunction(..., clone=...) with a function that makes the model anew",),
    ),
    "lag-zero": Kind("ValidationPolicy(max_lag=0) asks for it", ("leave max_lag at 1",)),
    "metric-python": Kind(
        "custom code computes the metrics of {}",
        ("make the validation batches by tf.data", "validate between epochs only"),
    ),
    "metric-state": Kind(
        "metrics go on from one validation to the next: {}",
        ("set all of their state back in reset_state, and return [*super().metrics, ...] from metrics",),
    ),
    "model-eager": Kind(
        "the model runs eagerly (run_eagerly=True)", ("compile it without run_eagerly=True",)
    ),
    "model-evaluates": Kind(
        "the model validates in its own way: {}",
        ("override test_step instead", "on several replicas, override compute_loss instead"),
    ),
    "overlap-slow": Kind(
        "running ahead has not paid: {}",
        (
            "leave it",
            'pass ValidationPolicy(overlap="always")',
            "give the validation devices of its own with ValidationPolicy(workers=...)",
        ),
    ),
    "step-stateful": Kind(
        "no snapshot holds what a step does: {}",
        ("keep its state in variables of the model (add_weight)", "move it to a callback"),
    ),
    "validation-writes": Kind(
        "the validation changes variables that are no metric of the model ({})",
        (
            "make them part of a metric",
            "draw seeds only on arrays or kept data, for one set, not inside epochs",
        ),
    ),
}


PAGE = "docs/troubleshooting.md"


@dataclass(frozen=True)
class Reason:
    """Say why the training waits for a validation; `Explanation.reasons` holds them.

    As a text it has the sentence, a line for each remedy, and where to read more.

    Attributes:
        identifier: of its kind, such as "callback-acts"; the anchor of its section in
            `docs/troubleshooting.md`.
        sentence: what is so, with the name of what causes it.
        remedies: what would make it overlap; each of them suffices.
    """

    identifier: str
    sentence: str
    remedies: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """The remedies in one text."""
        return joined(self.remedies)

    def __str__(self) -> str:
        *others, last = self.remedies
        lines = [*(f"  - {each}, or" for each in others), f"  - {last}"]
        return "\n".join([self.sentence, *lines, f"  see {PAGE}#{self.identifier}"])

    @classmethod
    def of(cls, identifier: str, cause: str = "", *remedies: str) -> Reason:
        """Return a reason of a kind, with its cause and perhaps better remedies for that."""
        kind = KINDS[identifier]
        return cls(identifier, kind.sentence.format(cause), remedies or kind.remedies)


def joined(remedies: tuple[str, ...]) -> str:
    """Return remedies in one text."""
    *others, last = remedies
    return f"{', '.join(others)}, or {last}" if others else last
