"""Why a training waits for its validations: a few kinds of reasons, each with an identifier to search for.

`docs/troubleshooting.md` has a section for each, made from this table by `python -m tests.docs.reasons`; its
anchor is the identifier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of reasons: the sentence of a message, what to do instead, and what the page explains."""

    sentence: str
    remedies: tuple[str, ...]
    means: str


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
        "A callback's hook inside epochs does more than note its arguments, so it has to be called between "
        "two steps. After a rollback it would run a second time for the same epoch.",
    ),
    "callback-validates": Kind(
        "a callback acts inside the validation: {}",
        ("move its work to on_test_end", _SAFE),
        "Its `on_test_begin` or a hook of a validation batch does more than log. So Keras validates. If the "
        "validation has not been traced yet, Keras traces it behind that hook, and this trace stays until "
        "the model is compiled again.",
    ),
    "data-follows": Kind(
        "the data depends on the training: {}",
        ("read it in the model or in preprocess", "give the data a copy of its own", _CONTINUE),
        "The pipeline, or Python code in it, reads or writes what the training or a callback changes: a "
        "variable, the model (as for adversarial examples), the history. So it has to see the state at its "
        "own turn. Draw for augmentation with a layer that the model does not use as well.",
    ),
    "data-once": Kind(
        "the data could not be read again after a rollback: {}",
        (
            "pass arrays or a tf.data pipeline without Python",
            "raise ValidationPolicy(keep_bytes=...)",
            "set overlap_safe = True on the callback if it changes nothing",
            _CONTINUE,
        ),
        "A callback may change the training, which is then trained again from the end of that epoch. "
        "Generators and `PyDataset`s cannot be read again, so their batches are kept. That does not help if "
        "`keep_bytes=0`, if the pipeline reads a variable, or if a callback may change what Python makes.",
    ),
    "data-shared": Kind(
        "it matters who draws first: {}",
        ("give the callback a dataset of its own", "set overlap_safe = True if it draws nothing", _CONTINUE),
        "A callback holds a dataset whose shuffle the training draws from. Give it one that it shuffles "
        "itself, or `shuffle(..., reshuffle_each_iteration=False)`. Objects with hundreds of thousands of "
        "parts are not searched: keep annotations in arrays.",
    ),
    "function-model": Kind(
        "an evaluation function needs the model itself: {}",
        ("pass EvaluationFunction(..., clone=...) with a function that makes the model anew",),
        "The model cannot be copied from its configuration, or the copy would compute something else. See "
        "[which model a function gets](how_to/custom_evaluation.md#which-model-does-it-get).",
    ),
    "lag-zero": Kind(
        "ValidationPolicy(max_lag=0) asks for it",
        ("leave max_lag at 1",),
        "Training waits because you asked for it.",
    ),
    "metric-python": Kind(
        "custom code computes the metrics of {}",
        ("make the validation batches by tf.data", "validate between epochs only"),
        "Keras runs a custom `result`, `reset_state`, `get_metrics_result` or `reset_metrics` as Python. "
        "That overlaps, but not if Python also makes the validation batches, if a callback acts around the "
        "validation, or with validations inside epochs.",
    ),
    "metric-state": Kind(
        "metrics go on from one validation to the next: {}",
        ("set all of their state back in reset_state, and return [*super().metrics, ...] from metrics",),
        "The next validation would begin with state of the last one. If the model overrides `metrics` "
        "without Keras's loss tracker, nothing resets that tracker.",
    ),
    "model-eager": Kind(
        "the model runs eagerly (run_eagerly=True)",
        ("compile it without run_eagerly=True",),
        "Nothing is traced, so it is not known what a step does, and nothing of it can be undone.",
    ),
    "model-evaluates": Kind(
        "the model validates in its own way: {}",
        ("override test_step instead", "on several replicas, override compute_loss instead"),
        "The model, a library or a mock replaces `evaluate` or `make_test_function`; or a custom `test_step` "
        "runs on several replicas, each with its own rows, as in Keras.",
    ),
    "overlap-slow": Kind(
        "running ahead has not paid: {}",
        (
            "leave it",
            'pass ValidationPolicy(overlap="always")',
            "give the validation devices of its own with ValidationPolicy(workers=...)",
        ),
        "The trainer has measured that the training leaves less than half a core idle, or that most epochs "
        "are rolled back. See "
        "[when it helps](start/when_it_helps.md).",
    ),
    "step-stateful": Kind(
        "no snapshot holds what a step does: {}",
        ("keep its state in variables of the model (add_weight)", "move it to a callback"),
        "A step or `preprocess` does something that is in no variable, so it can be neither undone nor made "
        "on a copy. The message names the operation, and its line unless that is in a function.",
    ),
    "validation-writes": Kind(
        "the validation changes variables that are no metric of the model ({})",
        (
            "make them part of a metric",
            "draw seeds only on arrays or kept data, for one set, not inside epochs",
        ),
        "A seed generator from which the validation draws, or a variable that it sets. Drawing seeds "
        "overlaps within these limits if no callback listens to validation batches or overrides "
        "`on_test_begin`.",
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
