"""Where two trainings differ: their logs, calls of hooks, variables and callbacks; and what that says."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")

_SMALLEST = 1e-300  # size of a difference in bits alone, as of a signed zero
_IN_MOMENTS = 0.02  # of a difference in moments counts so much: the share of a row in some batches
_RESULTS = 1e-12  # between the spacings of float64, in which Python has its numbers, and of float32
# What TensorFlow makes up in an error of a graph, and the frames of it and of a traceback.
_MADE_UP = re.compile(
    r"^  File \".*\n(?:    .*\n|\s*\n)*|(?<=Detected at node )\S+|\{\{(?:\w+_)?node .*?\}\}"
    r"|\b__(?:inference|forward|backward)_\w+",
    re.MULTILINE,
)
_NEVER = (math.inf, math.inf)
_ALIKE = 10  # times a difference between two runs of one kind is still the same
_MORE_RUNS = 3  # of Keras, where only overlapped runs have differed from each other so far
_NOISE = 8  # spacings of the largest entry in which the entries of an array may differ by rounding


@dataclass(kw_only=True)
class Call:
    """One call of `fit` or `evaluate` with what came of it, in plain values and arrays."""

    name: str = "fit"
    within: bool = False  # in a hook of another
    hooks: Sequence[tuple[str, int | None, Any]] = ()  # their names, epochs and logs
    callbacks: Sequence[tuple[str, Any]] = ()  # their classes and attributes
    result: Any = None
    metrics: Sequence[str] = ()  # names
    variables: Sequence[tuple[str, np.ndarray]] = ()  # their paths and values, behind a `fit`
    weights: int = 0  # how many of the variables are weights that are trained; they come first
    moments: int = 0  # how many of the variables are optimizers'; they come last
    raised: str | None = None  # the error with which it ended
    messages: Sequence[str] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Difference:
    """One place where two runs differ; `size` is relative, and infinite for what is no number."""

    place: str
    first: Any
    second: Any
    size: float
    decides: bool = False  # of a call, a metric or a variable: a program with a seed has it again
    order: tuple[float, float] = _NEVER  # the number of its call, and its epoch

    def __str__(self) -> str:
        if isinstance(self.first, np.ndarray):
            return self.place
        return f"{self.place}: {_short(self.first)} by Keras, {_short(self.second)} overlapped"

    @property
    def is_structural(self) -> bool:
        """Whether it is no number that differs."""
        texts = (re.sub(_NUMBER, "#", str(value)) for value in (self.first, self.second))
        of_texts = isinstance(self.first, str) and isinstance(self.second, str)
        return self.size == math.inf and not (of_texts and len({*texts}) == 1)


@dataclass(frozen=True)
class Judgement:
    """What the differences between a run by Keras and an overlapped one say.

    Attributes:
        value: "equal" bit for bit, equal up to "rounding", "different", or "unclear".
        text: the same as a sentence.
        wrong: the differences that are more than rounding, and more than those of Keras from itself.
        counted: all but those in what Keras has not twice and decides nothing, such as a time.
        varying: those in which two runs of one kind differ by more than rounding.
    """

    value: str
    text: str
    wrong: Sequence[Difference] = ()
    counted: Sequence[Difference] = ()
    varying: Sequence[Difference] = ()


def judge(
    unequal: Sequence[Difference], varying: Callable[[str], Iterable[Difference]], *, tolerance: float
) -> Judgement:
    """Return what the differences between two runs say.

    Args:
        unequal: they are.
        varying: returns how one of them, "keras" or "overlap", differs when it runs again, or how that by
            Keras differs from an overlapped one of Keras's own operations, "operations". It is called only
            where the answer depends on that.
        tolerance: the largest relative difference that is rounding.
    """
    noise = _noise(unequal, varying, tolerance) if unequal else {}
    unclear = {place: d for place, d in noise.items() if not d.size <= tolerance}
    # What differs in the epoch of a race or later follows from it, even if two runs agree there by chance.
    since = min((d.order for d in unclear.values() if d.decides), default=None)
    # A time since some start differs by as much as in two runs of Keras, which may be less than rounding.
    limits = {place: max(tolerance, _ALIKE * d.size) for place, d in noise.items() if not d.decides}

    def is_wrong(d: Difference) -> bool:
        is_large = d.place not in unclear and not d.size <= limits.get(d.place, tolerance)
        return is_large and (since is None or d.order < since or d.is_structural)

    wrong = list(filter(is_wrong, unequal))
    counted = [d for d in unequal if d.place not in noise or (d.decides and d.place not in unclear)]
    unseeded = next((d for d in unclear.values() if d.decides), None)
    left_out = list(unclear.values())
    if wrong:
        # As rounding, which grows. An epoch is trained before it is validated, though its hook comes behind.
        trained = (d for d in counted if d.order == counted[0].order and "on_test" not in d.place)
        first = next(trained, counted[0] if counted else None)
        begun = first if first is not None and first.size <= tolerance else None
        beginning = "" if begun is None else f"; it begins with {begun.size:.1e}, {begun.place}"
        if begun is not None and not any(map(is_wrong, varying("operations"))):
            text = f"equal up to rounding, which this training magnifies: {wrong[0]}{beginning}"
            text += "; with Keras's own operations it is rounding alone"
            return Judgement("rounding", text, (), counted, left_out)
        return Judgement("different", f"different: {wrong[0]}{beginning}", wrong, counted, left_out)
    if unseeded is not None:
        text = f"cannot be told: two runs of Keras differ as well, such as in {unseeded.place}"
        return Judgement("unclear", text, (), counted, left_out)
    if counted:
        worst = max(counted, key=lambda difference: difference.size)
        text = f"equal up to rounding: the largest difference is {worst.size:.1e}, {worst}"
        return Judgement("rounding", text, (), counted, left_out)
    return Judgement("equal", "equal bit for bit", (), (), left_out)


def _noise(
    unequal: Sequence[Difference], varying: Callable[[str], Iterable[Difference]], tolerance: float
) -> dict[str, Difference]:
    """Return what differs between runs of one kind, by its place: there the two kinds may differ as well."""

    def races(differences: Iterable[Difference]) -> bool:
        return any(d.decides and not d.size <= tolerance for d in differences)

    noise = {d.place: d for d in varying("keras")}
    keras_races = races(noise.values())
    if not keras_races and not races(unequal):
        return noise
    # Threads may race in such a script, and two runs agree by chance in what two others do not.
    ours = {d.place: d for d in varying("overlap")}
    if not keras_races and races(ours.values()):  # a fault of the overlapping, unless Keras does so too
        for _ in range(_MORE_RUNS):
            noise |= {d.place: d for d in varying("keras")}
            if keras_races := races(noise.values()):
                break
    return noise | ours if keras_races else noise


def without_made_up(text: str) -> str:
    """Return a text without the names that TensorFlow makes up in an error of a graph, and without frames."""
    return _MADE_UP.sub("", text)


def raised_alike(first: str | None, second: str | None) -> bool:
    """Whether two errors are the same but for numbers, such as of the row that failed first."""
    if first is None or second is None:
        return False
    return len({_NUMBER.sub("#", without_made_up(text)) for text in (first, second)}) == 1


def different_calls(place: str, first: Call, second: Call, number: int = 0) -> Iterator[Difference]:
    """Yield where two calls with a number differ, in the order in which it happened; callbacks come last."""
    for each in _in_calls(place, first, second):
        yield dataclasses.replace(each, order=(number, each.order[1]))


def _in_calls(place: str, first: Call, second: Call) -> Iterator[Difference]:
    names = {*first.metrics, *second.metrics}
    yield from _different_hooks(place, first.hooks, second.hooks, names)
    yield from _different_logs(f"{place}, result", first.result, second.result, names)
    if (first.raised is None) != (second.raised is None):
        a, b = ("nothing" if call.raised is None else call.raised for call in (first, second))
        yield Difference(f"{place}, error", a, b, math.inf)
    if not raised_alike(first.raised, second.raised):  # which Keras may find behind some steps
        yield from deciding(_different_variables(place, first, second))
    kinds = ([kind for kind, _ in call.callbacks] for call in (first, second))
    yield from deciding(differences_of(f"{place}, callbacks", *kinds))
    for (kind, state), (same, other) in zip(first.callbacks, second.callbacks, strict=False):
        if kind != same:
            break
        yield from differences_of(f"{place}, {kind}", state, other)


def _different_variables(place: str, first: Call, second: Call) -> Iterator[Difference]:
    """Yield where variables differ, by their order: names that Keras makes up count what a process made."""
    yield from differences_of(f"{place}, number of variables", len(first.variables), len(second.variables))
    kinds = [_kind_of_variable(first, number) for number in range(len(first.variables))]

    # A weight that no result depends on, such as the bias of an attention's keys, is rounding itself, and so
    # are its moments: their own scale says nothing. So no entry has a scale below the upper quartile of those
    # of all weights, or of all moments of its name.
    @functools.cache
    def scale(kind: str | None) -> float:
        alike = (value for (_, value), each in zip(first.variables, kinds, strict=True) if each == kind)
        return _upper_quartile(np.concatenate([np.abs(value[np.isfinite(value)]) for value in alike]))

    pairs = zip(first.variables, second.variables, kinds, strict=False)
    for number, ((path, value), (_, other), kind) in enumerate(pairs):
        size = _size(value, other)
        if kind is not None and 0 < size < math.inf:
            size = _size(value, other, scale(kind))
        found = [Difference(f"{place}, variable {path}", value, other, size)] if size else []
        is_moment = number >= len(first.variables) - first.moments
        yield from in_moments(found) if is_moment else found


def _kind_of_variable(call: Call, number: int) -> str | None:
    """Return what the entries of one of a call's variables are measured with; None for its own alone."""
    path, value = call.variables[number]
    if not np.ndim(value) or value.dtype.kind not in "fc":
        return None
    if number < call.weights:
        return "weight"
    if number >= len(call.variables) - call.moments:
        return f"{path.partition('/')[0]} {path.rpartition('_')[2]}"
    return None


def in_moments(differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield differences between variables of optimizers, with sizes that count less but for scalars.

    Moments are of gradients, which take another way where rounding moves the largest of some inputs.
    """
    for each in differences:
        yield dataclasses.replace(each, size=each.size * (_IN_MOMENTS if np.ndim(each.first) else 1.0))


def deciding(differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield differences of what a program with a seed has again."""
    return (dataclasses.replace(difference, decides=True) for difference in differences)


def _different_hooks(
    place: str, first: Sequence[Any], second: Sequence[Any], metrics: Set[str]
) -> Iterator[Difference]:
    """Yield where the hooks of a call differ, by epoch."""
    names = [[f"{hook}({'' if n is None else n})" for hook, n, _ in calls] for calls in (first, second)]
    for number, (a, b) in enumerate(itertools.zip_longest(*names, fillvalue="nothing")):
        if a != b:
            epochs = sum(n is not None for _, n, _ in first[:number])
            where = f"{place}, call {number + 1} of callbacks"
            yield Difference(where, a, b, math.inf, decides=True, order=(0, epochs))
            return
    ends = [n + 1 for _, n, _ in first if n is not None]  # the epochs, by when they end
    epoch = 0  # that have ended
    for (hook, number, logs), (_, _, others) in zip(first, second, strict=True):
        where = f"epoch {ends[epoch]}, {hook}" if epoch < len(ends) else hook
        for found in _different_logs(f"{place}, {where}", logs, others, metrics):
            yield dataclasses.replace(found, order=(0, epoch))
        epoch += number is not None


def _different_logs(place: str, first: Any, second: Any, metrics: Set[str]) -> Iterator[Difference]:
    """Yield where two logs differ; what a callback adds to the metrics, a time say, does not decide."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        yield from deciding(differences_of(place, first, second))
        return
    for name in dict.fromkeys([*first, *second]):
        mine, theirs = ({name: logs[name]} if name in logs else {} for logs in (first, second))
        found = differences_of(place, mine, theirs)
        yield from deciding(found) if not metrics or name.removeprefix("val_") in metrics else found


def differences_of(
    place: str, first: Any, second: Any, *, texts: Callable[..., Iterator[Difference]] | None = None
) -> Iterator[Difference]:
    """Yield where two trees of plain values and arrays differ; `texts` compares texts by other parts."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            here = f"{place} {key}"
            if key in first and key in second:
                yield from differences_of(here, first[key], second[key], texts=texts)
            else:
                mine, theirs = ("there" if key in values else "missing" for values in (first, second))
                yield Difference(here, mine, theirs, math.inf)
    elif isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            yield Difference(f"{place}, number of entries", len(first), len(second), math.inf)
        for number, (a, b) in enumerate(zip(first, second, strict=False)):
            yield from differences_of(f"{place} [{number}]", a, b, texts=texts)
    elif isinstance(first, str) and isinstance(second, str):
        yield from (texts or _different_texts)(place, first, second)
    else:
        size = _size(first, second)
        if size:
            yield Difference(place, first, second, size)


def _different_texts(place: str, first: str, second: str) -> Iterator[Difference]:
    """Yield a difference for each number in which two texts differ, or one for their words."""
    if first == second:
        return
    if _NUMBER.sub("#", first) != _NUMBER.sub("#", second):
        yield Difference(place, first, second, math.inf)
        return
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    for number, (a, b) in enumerate(pairs):
        whole = a.lstrip("+-").isdigit() and b.lstrip("+-").isdigit()
        if size := math.inf if whole and a != b else _size(float(a), float(b)):
            yield Difference(f"{place}, number {number + 1}", a, b, size)


def _size(first: Any, second: Any, least: float = 0.0) -> float:
    """Return by how much two values differ: 0 if they are equal bit for bit, inf where it is no rounding.

    No entry of an array counts as less than `least`.
    """
    kinds = (float, np.ndarray)
    if not isinstance(first, kinds) or not isinstance(second, kinds):
        return 0.0 if type(first) is type(second) and first == second else math.inf
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    if a.tobytes() == b.tobytes():
        return 0.0
    if a.dtype.kind not in "fc":
        return math.inf
    finite = np.isfinite(a)
    if not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
        return math.inf
    # An entry's rounding is that of the sums that it came from: of its own size in numbers of Python's, which
    # are results, and of a larger entry's in the arrays of a model, where sums cancel each other.
    apart = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)).astype(float)
    each = np.where(finite, np.maximum(np.abs(a), np.abs(b)), 0).astype(float)
    largest, eps = np.max(each, initial=least), np.finfo(a.dtype).eps
    each = np.maximum(each, max(least, _upper_quartile(each) if eps > _RESULTS else 0.0))
    each = np.where(apart <= _NOISE * eps * largest, largest, each)
    return max(float(np.max(apart / np.maximum(each, _SMALLEST), initial=0.0)), _SMALLEST)


def _upper_quartile(entries: np.ndarray) -> float:
    """Return the upper quartile of the entries that are not 0."""
    some = entries[entries > 0]
    return float(np.quantile(some, 0.75, method="lower")) if some.size else 0.0


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
