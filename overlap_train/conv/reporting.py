"""What "auto" has measured, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterable

from overlap_train._support.arguments import require_items
from overlap_train.conv import selection
from overlap_train.conv.shapes import MATMUL, STOCK, Timing

__all__ = ["format_report", "report"]


def report() -> tuple[Timing, ...]:
    """Return the times that `algorithm="auto"` has measured, for each shape and algorithm. Any thread."""
    return selection.timings()


def format_report(rows: Iterable[Timing] | None = None) -> str:
    """Return the report as a table, with times in milliseconds.

    The ratio is TensorFlow's time over our fastest, also where TensorFlow's kernel was chosen.

    Args:
        rows: the rows to show; None means everything timed so far.
    """
    lines = [
        f"{'convolution':<44} {'direction':<16} {'tf.nn':>9} {'winograd':>9} {'direct':>9} {'matmul':>9}  "
        f"{'chosen':<13} {'ratio':>5}"
    ]
    if rows is None:
        rows = report()
    for row in require_items("rows", rows, Timing, expected="what report() returns"):
        key = row.key
        batch = f"{key.input_shape[0]}{'?' if key.batch_assumed else ''}"
        shape = f"{batch}×{'×'.join(map(str, key.input_shape[1:]))} → {key.filter_shape[3]}"
        window = f"{key.filter_shape[0]}×{key.filter_shape[1]}/{key.strides[0]} {key.padding}"
        times = [
            f"{row.milliseconds[n]:9.3f}" if n in row.milliseconds else " " * 9
            for n in (STOCK, "winograd", "direct", MATMUL)
        ]
        epilogue = "".join([" +bias" if key.bias else "", " +relu" if key.relu else ""])
        lines.append(
            f"{f'{shape}, {window}{epilogue}':<44} {key.direction:<16} {' '.join(times)}  {row.chosen:<13} "
            f"{row.best_of_ours:5.2f}"
        )
    return "\n".join(lines)
