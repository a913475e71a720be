"""The messages of the package, read from its sources: every text of some words that is no docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "overlap_train"

# What trains, validates and keeps checkpoints, what users tell it, and how the convolution is had. The
# companions have their own pages.
ROOMS = (
    *("_callbacks", "_checkpoint", "_data", "_fit", "_inspection", "_keras", "_snapshot.py"),
    *("_support", "_training", "_validation", "options", "parallel", "records.py", "routing.py"),
    *("trainer.py", *(f"conv/{name}.py" for name in ("build", "library", "native_cache"))),
)

_WORD = re.compile(r"[A-Za-z][\w'.=()-]*")

# Texts of some words that no user is shown, by file: parts of digests and of patterns, what values stand for,
# what a reason names (its kind has its section), and parts of what differs from a checkpoint or is ignored.
_NOT_SHOWN = {
    "_checkpoint/resume.py": ("the order and number of all variables",),
    "_data/array_feed.py": (" digest ",),
    "_data/iterator_feed.py": (" batches of ",),
    "_data/pass_state.py": ("cannot be told apart",),  # which is caught
    "_data/pipeline.py": ("a lookup table", "an iterator, a queue or a captured dataset"),
    "_fit/build.py": (
        *("validating in step with the training", "on another host", "the model's test function"),
        "the model's evaluate",
    ),
    "_fit/checkpointing.py": (
        *("validation_step", ": freq", "the training step", "the training data$", "the validation data…"),
        "….seeds of shuffles",
    ),
    "_fit/draws.py": ("a table, an iterator, a queue or a captured dataset",),
    "_fit/lag.py": ("in step with the training", "… from epoch", "… from now on", "the training step"),
    "_fit/own_methods.py": ("put Keras's method back", "call super()"),
    "_fit/request.py": ("validation_step of the trainer",),
    "_fit/run.py": ("Collective ops is aborted",),
    "_inspection/code.py": ("",),
    "_inspection/effects.py": ("",),
    "_inspection/tables.py": ("",),
    "_keras/metrics.py": ("a method of the model or of a metric",),
    "_keras/names.py": (" _", "executor_fn future_queue"),
    "_keras/training.py": (
        *("makes its test function itself", "keras.Model.evaluate is that of", "has an evaluate of its own"),
    ),
    "_support/differences.py": ("",),  # the verdicts of `verify`, which its page explains
    "_support/imports.py": ("module",),
    "_support/printing.py": ("style=",),
    "_support/reasons.py": ("",),
    "_training/settings.py": ("validations inside epochs", "_step of the trainer"),
    "_validation/pool.py": ("ask for fewer workers, or",),  # the advice of a message
    "_validation/pending.py": ("Graph execution error|", r"\{\{.*?\}\}"),
    "_validation/sets.py": ("the trainer's validation_step",),
    "records.py": ("timeline of overlap_train",),
    "routing.py": ("validations inside epochs",),
}


@dataclass(frozen=True)
class Message:
    """A text in the sources.

    Attributes:
        text: with "…" for each value that is put into it, and single spaces.
        where: file and line.
    """

    text: str
    where: str


def messages(*, least_words: int = 3) -> list[Message]:
    """Return every text of the rooms that has so many words, in the order of the sources."""
    paths = [path for room in ROOMS for path in _sources(PACKAGE / room)]
    return [message for path in paths for message in _of(path) if words(message.text) >= least_words]


def normal(text: str) -> str:
    """Return a text with single spaces, and values in a row as one."""
    return re.sub(r"\s+", " ", re.sub(r"…(\s*…)+", "…", text)).strip()


def words(text: str) -> int:
    """Return the number of words in a text."""
    return len(_WORD.findall(text))


def _sources(room: Path) -> list[Path]:
    return sorted(room.rglob("*.py")) if room.is_dir() else [room]


def _of(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text())
    skipped = {id(part) for node in ast.walk(tree) for part in _not_said(node)}
    file = path.relative_to(PACKAGE).as_posix()
    for node in ast.walk(tree):
        text = None if id(node) in skipped else _text(node)
        if text is None or " " not in text.strip():
            continue
        if not any(_is_of(part, text) for part in _NOT_SHOWN.get(file, ())):
            yield Message(normal(text), f"{file}:{getattr(node, 'lineno', 0)}")


def _is_of(part: str, text: str) -> bool:
    """Return whether a text has a part, or is all of it where that ends with "$"."""
    return text == part.removesuffix("$") if part.endswith("$") else part in text


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
    return None


def _not_said(node: ast.AST) -> Iterator[ast.AST]:
    """Returns what stands in a node and is no text of its own: docstrings, and the pieces of an f-string."""
    if isinstance(node, ast.JoinedStr):
        yield from (part for part in node.values if isinstance(part, ast.Constant))
    # What causes a wait: its kind has a section.
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Reason.of":
        yield from (part for argument in node.args for part in ast.walk(argument))
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "cause":
        yield from ast.walk(node.value)
    body = getattr(node, "body", None)
    if isinstance(body, list):
        yield from (s.value for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
