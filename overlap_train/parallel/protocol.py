"""What the chief and the evaluator say to each other: whatever has another form is refused here.

The chief begins with "hello" and a description of its training; the evaluator answers "welcome" or "refused".
Then the chief sends "validate" or "check" with weights, one at a time, answered by "result" or "error"; at
last "end" with the last weights and the history, or "failed".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from overlap_train._support.arguments import array_of
from overlap_train.errors import HostMismatchError
from overlap_train.parallel.link import Refusal

__all__ = ["abridged", "as_json", "from_json", "is_answer", "is_list", "is_request", "judge"]

# Nine parts of this size are shorter than the longest first message that an evaluator takes.
_LONGEST_PART, _LONGEST_START = 100_000, 8_000


def judge(
    hello: Mapping[str, Any],
    authenticated: bool,
    *,
    description: Mapping[str, str],
    in_step: str | None,
) -> Exception | None:
    """Compare a first message with this host's description. Called on threads that greet.

    Args:
        hello: what came first from whoever connected.
        authenticated: whether it has proved that it has the key.
        description: what has to be the same on both hosts, by name.
        in_step: why the validation cannot be made on another host, or None.

    Returns:
        None for the chief, or why this host and the chief have to end.

    Raises:
        Refusal: if it is no chief, or differs and may be anybody: without a proof of the key, what differs
            must not end this host, and the peer is told no more of its description than which part that is.
    """
    theirs = hello.get("description")
    if hello.get("kind") != "hello" or not isinstance(theirs, dict):
        raise Refusal("the first message must be a 'hello' with a 'description'")
    for part in description:
        if not isinstance(theirs.get(part), str):
            found = f"{type(theirs[part]).__name__}" if part in theirs else "nothing"
            raise Refusal(f"the description must have text as {part!r}; it has {found}")
    unknown = [part[:100] for part in theirs if part not in description]
    if unknown:
        raise Refusal(f"the description has {unknown[0]!r}, which the evaluator does not know")
    for part, mine in description.items():
        if theirs[part] != mine:
            own, other = _first_difference(mine, theirs[part])
            message = (
                f"the evaluator has another {part} than the chief: {own!r} instead of {other!r}; start it "
                "with the same program and data"
            )
            if authenticated:
                return HostMismatchError(message)
            raise Refusal(message, told=_without_own(part, theirs[part]))
    return ValueError(f"{in_step}; that is for validation without an evaluator") if in_step else None


def is_request(message: Mapping[str, Any]) -> bool:
    """Return whether a message is one that a chief sends after its first."""
    kind = message.get("kind")
    if kind in ("validate", "check"):
        return isinstance(message.get("set"), str)
    if kind == "end":
        history = message.get("history")
        return (
            isinstance(message.get("ended"), str)
            and is_list(message.get("epoch"), int)
            and isinstance(history, dict)
            and all(isinstance(values, list) for values in history.values())
        )
    return kind == "failed"


def is_answer(answer: Mapping[str, Any], *, with_metrics: bool) -> bool:
    """Return whether a message is one that an evaluator sends."""
    if answer.get("kind") != "result":
        return answer.get("kind") == "error"
    running = answer.get("running")
    found = [answer.get("metrics"), *running] if isinstance(running, list) else [None]
    return not with_metrics or all(_are_metrics(metrics) for metrics in found)


def is_list(value: object, kind: type) -> TypeGuard[list[Any]]:
    """Return whether a value is a list of items of a kind."""
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def abridged(text: str) -> str:
    """Return a text, or the beginning and a digest of one that is too long for a first message."""
    if len(json.dumps(text)) <= _LONGEST_PART:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[:_LONGEST_START]}\n… SHA-256 of all {len(text)} characters: {digest}"


def _without_own(part: str, theirs: str) -> str:
    """Return what a peer that may be anybody is told of a part that differs.

    Its own text from the beginning: in which line the two differ would let it guess line by line.
    """
    return (
        f"the evaluator has another {part} than the chief, which has {theirs[:300]!r}; start both with the "
        "same program and data. What the evaluator has is in its log, and with a key on both hosts it is here"
    )


def _first_difference(mine: str, theirs: str) -> Sequence[str]:
    """Return the first line in which two texts differ, as it is in each."""
    own, other = mine.split("\n"), theirs.split("\n")
    length = max(len(own), len(other))
    own, other = (lines + ["nothing"] * (length - len(lines)) for lines in (own, other))
    pairs = [pair for pair in zip(own, other, strict=True) if pair[0] != pair[1]]
    return [line[:300] for line in pairs[0]]


def as_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as JSON has them: what has several values as lists."""
    return {name: _as_json(value) for name, value in metrics.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    return array_of(value).tolist() if hasattr(value, "__array__") else value


def from_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics from what `as_json` made of them: lists as arrays."""
    return {n: np.asarray(v) if isinstance(v, list) else v for n, v in metrics.items()}


def _are_metrics(value: object) -> bool:
    return isinstance(value, dict) and all(_are_numbers(number) for number in value.values())


def _are_numbers(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_are_numbers, value))
    return isinstance(value, (int, float))
