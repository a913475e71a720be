"""The closing table of a fit, and how a metric's value is written for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overlap_train._support.arguments import (
    require_count,
    require_instance,
    require_items,
    short_repr,
    text_of,
)
from overlap_train._support.printing import html_table
from overlap_train.records import EpochAccount, FitAccount

EpochRow = tuple[EpochAccount, Mapping[str, Any]]

_MISSING = "-"
_GAP = "  "
_MOST_NUMBERS = 4  # of a metric that has several
_LONGEST = 32


@dataclass(frozen=True)
class _Column:
    """One column of text: two lines of heading, a cell for each row, and the cell of the total row."""

    heading: str
    unit: str
    cells: tuple[str, ...]
    total: str = ""

    @property
    def width(self) -> int:
        return max(len(text) for text in (self.heading, self.unit, self.total, *self.cells))


def format_epoch_table(rows: Iterable[EpochRow], fit: FitAccount | None = None, *, width: int = 100) -> str:
    """Return a table with a row for each epoch: its metrics, and the seconds that it took.

    The column "all" has the seconds of the training thread: those trained, waited and rolled back, and the
    rest, such as callbacks. With `fit` there is a row for its preparation, and one for epochs that were not
    delivered ("partial"), if there are any. So the rows add up to the total, which is that of the fit. A
    sentence about the validation follows.

    Metrics are in the order of their first appearance, those of training before those of validation
    (`val_…`). There is a column of seconds rolled back, or of slow hosts, only if there were some. A table
    wider than `width` continues in further blocks below.

    Args:
        rows: the account and the metrics of each epoch; some metrics may be missing.
        fit: the account of the whole fit.
        width: the largest number of characters in a line; a single column may be wider.

    Returns:
        The lines, joined, without a newline at the end. Epochs count from 1, as Keras prints them.
    """
    pairs = require_items("rows", rows, (tuple, list), expected="pairs of an EpochAccount and its metrics")
    rows = [_checked_row("rows", row) for row in pairs]
    require_instance("fit", fit, FitAccount)
    width = require_count("width", width, minimum=1)
    if not rows:
        return "No epoch was trained."
    epochs, metrics, seconds = _columns(rows, fit)
    if _line_width([epochs, *metrics, *seconds]) <= width:
        blocks = [[epochs, *metrics, *seconds]]
    else:
        blocks = [
            [epochs, *part] for part in (*_parts(metrics, epochs, width), *_parts(seconds, epochs, width))
        ]
    table = "\n\n".join("\n".join(_lines(block)) for block in blocks)
    return table if fit is None or not fit.validated_s else f"{table}\n{fit}"


def epoch_table_html(rows: Sequence[EpochRow], fit: FitAccount | None) -> str:
    """Return the table for a notebook."""
    epochs, metrics, seconds = _columns(rows, fit)
    columns = [epochs, *metrics, *seconds]
    heading = [f"{column.heading} {f'({column.unit})' if column.unit else ''}" for column in columns]
    cells = zip(*([*column.cells, column.total] for column in columns), strict=True)
    return html_table(heading, cells) + f"<p>{fit or ''}</p>"


def _columns(
    rows: Sequence[EpochRow], fit: FitAccount | None
) -> tuple[_Column, list[_Column], list[_Column]]:
    """Return the columns of the rows' names, of the metrics and of the seconds."""
    before = {} if fit is None else {"prepared": fit.prepared_s}
    after = {} if fit is None or fit.undelivered_s < 0.005 else {"partial": fit.undelivered_s}
    names = (*before, *(str(account.epoch + 1) for account, _ in rows), *after)
    all_s = [*before.values(), *(account.seconds for account, _ in rows), *after.values()]

    def padded(column: _Column) -> _Column:
        return replace(column, cells=("",) * len(before) + column.cells + ("",) * len(after))

    metrics = [padded(_metric_column(name, rows)) for name in _metric_names(rows)]
    seconds = [_sum_column("all", all_s), *map(padded, _seconds_columns(rows))]
    return _Column("epoch", "", names, "total"), metrics, seconds


def format_metric(value: Any) -> str:
    """Return a metric as text for people; never raises, because reporting must not end a training.

    A number has four decimals, or scientific notation if they would hide it. Of several numbers the first are
    shown in brackets, with their count. Anything else becomes shortened text.
    """
    if value is None:
        return _MISSING
    try:
        numbers = np.asarray(value, float)
    except Exception:  # also one of the value's own
        text = " ".join(text_of(value).split())
        return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    if numbers.size == 1:
        return _format_number(float(numbers.ravel()[0]))
    first = " ".join(_format_number(float(number)) for number in numbers.ravel()[:_MOST_NUMBERS])
    return f"[{first}]" if numbers.size <= _MOST_NUMBERS else f"[{first} ... {numbers.size} values]"


def _format_number(value: float) -> str:
    if not math.isfinite(value) or value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4f}"
    return f"{value:.4e}"


def _checked_row(name: str, row: Any) -> EpochRow:
    is_row = isinstance(row, (tuple, list)) and len(row) == 2
    if not is_row or not isinstance(row[0], EpochAccount) or not isinstance(row[1], Mapping):
        raise TypeError(
            f"{name} must be pairs of an EpochAccount and its metrics; got {short_repr(row)} in it"
        )
    return row[0], row[1]


def _metric_names(rows: Sequence[EpochRow]) -> list[str]:
    names = dict.fromkeys(name for _, metrics in rows for name in metrics)
    return sorted(names, key=lambda name: name.startswith("val_"))


def _metric_column(name: str, rows: Sequence[EpochRow]) -> _Column:
    return _Column(name, "", tuple(format_metric(metrics.get(name)) for _, metrics in rows))


def _seconds_columns(rows: Sequence[EpochRow]) -> list[_Column]:
    accounts = [account for account, _ in rows]
    columns = {
        "trained": [account.trained_s for account in accounts],
        "waited": [account.waited_s for account in accounts],
        "rolled back": [account.rolled_back_s for account in accounts],
        "rest": [account.rest_s for account in accounts],
        "validated": [account.validated_s for account in accounts],
        "hidden": [account.hidden_s for account in accounts],
    }
    if not any(columns["rolled back"]):
        del columns["rolled back"]
    seconds = [_sum_column(heading, cells) for heading, cells in columns.items()]
    if any(account.slow_host is not None for account in accounts):
        seconds.append(_Column("slow host", "s", tuple(map(_slow_host, accounts))))
    return seconds


def _sum_column(heading: str, seconds: Sequence[float]) -> _Column:
    return _Column(heading, "s", tuple(f"{cell:.2f}" for cell in seconds), f"{math.fsum(seconds):.2f}")


def _slow_host(account: EpochAccount) -> str:
    """Return the host that the others waited for, and how long."""
    return "" if account.slow_host is None else f"{account.slow_host}: {account.slow_host_s:.2f}"


def _line_width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _parts(columns: Sequence[_Column], first: _Column, width: int) -> Iterator[list[_Column]]:
    """Cut columns into parts that fit next to `first`, at least one column in each."""
    part: list[_Column] = []
    for column in columns:
        if part and _line_width([first, *part, column]) > width:
            yield part
            part = []
        part.append(column)
    if part:
        yield part


def _lines(columns: Sequence[_Column]) -> Iterator[str]:
    def line(cells: Iterable[str]) -> str:
        return _GAP.join(f"{cell:>{c.width}}" for cell, c in zip(cells, columns, strict=True)).rstrip()

    rule = _GAP.join("-" * column.width for column in columns)
    yield line(column.heading for column in columns)
    if any(column.unit for column in columns):
        yield line(column.unit for column in columns)
    yield rule
    for row in range(len(columns[0].cells)):
        yield line(column.cells[row] for column in columns)
    if any(column.total for column in columns[1:]):
        yield rule
        yield line(column.total for column in columns)
