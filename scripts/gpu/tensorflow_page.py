"""What `gpu_tensorflow.sh` shows of each stage."""

from __future__ import annotations

from scripts.gpu.overlap_stages import BAR
from scripts.gpu.page import Row, Section, table

__all__ = ["SECTIONS"]


def _pieces(rows: list[Row]) -> str:
    return _facts(
        rows, ("pieces", "commands", "refused", "tensorflow", "keras", "numpy", "cuda", "libraries")
    )


def _overlap(rows: list[Row]) -> str:
    head = ("system", "seconds", "GPU busy, %", "validation loss", "data")
    lines = [
        (row["system"], row["seconds"], row["gpu_percent"] or "unknown", row["val_loss"], row["data"])
        for row in rows
        if "system" in row
    ]
    emulated = any(row.get("emulated") for row in rows)
    bar = "none: emulated" if emulated else f"at most {BAR} of keras_tfdata's time"
    return f"{table(head, lines)}\n\nThe bar of `overlap`: {bar}.{_wrong(rows)}"


def _operation(rows: list[Row]) -> str:
    return _facts(rows, ("layer", "repeats", "largest_error", "device"))


def _equal(rows: list[Row]) -> str:
    lines = [(row["network"], row["weights"], row["history"], "; ".join(row["messages"])) for row in rows]
    head = ("network", "weights differ by", "history differs by", "what the trainer said")
    return table(head, lines) + _wrong(rows)


def _divided(rows: list[Row]) -> str:
    lines = [(", ".join(row["parts"]), *row["differences"].values()) for row in rows]
    return table(("parts of the card", "losses differ by", "weights differ by"), lines) + _wrong(rows)


def _buffers(rows: list[Row]) -> str:
    return _facts(rows, ("turns", "bytes", "copy_s", "zero_copy_s"))


def _policies(rows: list[Row]) -> str:
    return _facts(rows, ("policy", "duty", "achieved", "seconds"))


def _donation(rows: list[Row]) -> str:
    lines = [
        (row["key"], row.get("steps", ""), row.get("changed", ""), str(row.get("differences", "")))
        for row in rows
    ]
    return table(("check", "snapshots", "changed later", "differences from Keras"), lines) + _wrong(rows)


def _tests(rows: list[Row]) -> str:
    return "\n\n".join("```\n" + "\n".join(row["last_words"]) + "\n```" for row in rows) + _wrong(rows)


def _suite(rows: list[Row]) -> str:
    failures = [f"- `{row['failure']}`" for row in rows if "failure" in row]
    ends = [line for row in rows for line in row.get("last_words", ())]
    return "\n".join(["```", *ends, "```", "", *failures]) + _wrong(rows)


def _facts(rows: list[Row], names: tuple[str, ...]) -> str:
    """Return a table of those of `names` that any row has."""
    shown = [name for name in names if any(name in row for row in rows)]
    lines = [(row["key"], *[row.get(name, "") for name in shown]) for row in rows]
    return table(("", *[name.replace("_", " ") for name in shown]), lines) + _wrong(rows)


def _wrong(rows: list[Row]) -> str:
    found = [f"- {row['key']}: {'; '.join(row['wrong'])}" for row in rows if row.get("wrong")]
    return "\n\n**Wrong:**\n\n" + "\n".join(found) if found else ""


SECTIONS = (
    Section("pieces", "TensorFlow, brought in pieces", _pieces),
    Section("overlap", "Training and validation overlapped (P1)", _overlap),
    Section("operation", "The convolution on TensorFlow's stream", _operation),
    Section("divided", "A card divided between training and validation", _divided),
    Section("buffers", "Mapped buffers on the device", _buffers),
    Section("policies", "The scheduler's policies on CPU and GPU (P4)", _policies),
    Section("equal", "Keras's numbers, with operations that repeat", _equal),
    Section("donation", "Snapshots while XLA donates buffers", _donation),
    Section("tests", "The tests that need a GPU", _tests),
    Section("suite", "The default tests of the trainer, run on the card with operations that repeat", _suite),
)
