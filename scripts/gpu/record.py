"""What one stage has found: a line for each row, on disk as soon as it is known, and one for each end.

A process may be killed between any two bytes. A line that was cut short does not count, and its row is
measured again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["ENDED", "Record", "write_atomically"]

DONE, PARTIAL, FAILED, UNAVAILABLE = "done", "partial", "failed", "unavailable"
# What a re-run does not repeat. "unavailable": the machine lacks what the stage needs.
ENDED = frozenset({DONE, UNAVAILABLE})


def write_atomically(path: Path, content: bytes) -> None:
    """Put a file in place whole, or leave what was there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    os.replace(draft, path)


class Record:
    """Rows and ends of one stage, of one state of the sources on one card, which the fingerprint names."""

    def __init__(self, directory: Path, stage: str, *, fingerprint: str, emulated: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path, self._fingerprint, self._emulated = directory / f"{stage}.jsonl", fingerprint, emulated
        self._rows: dict[str, dict[str, Any]] = {}
        self.ends: list[dict[str, Any]] = []
        for line in self._path.read_text(errors="replace").splitlines() if self._path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("fingerprint") == fingerprint:
                self._take(entry)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows.values())

    @property
    def status(self) -> str | None:
        """How the stage ended last, or None."""
        return str(self.ends[-1]["status"]) if self.ends else None

    @property
    def reason(self) -> str:
        """Why it ended so; empty if it is done."""
        return str(self.ends[-1]["reason"]) if self.ends else ""

    def has(self, key: str) -> bool:
        return key in self._rows

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep a row, on disk when this returns."""
        self._append({"row": {"key": key, **row} | ({"emulated": True} if self._emulated else {})})

    def end(
        self, status: str, *, seconds: float, reason: str = "", summary: Mapping[str, Any] | None = None
    ) -> None:
        """Keep how the stage ended: "done", "partial" (out of time), "failed", or "unavailable" here."""
        end = {"status": status, "seconds": round(seconds, 3), "reason": reason}
        self._append({"end": end | {"summary": dict(summary or {}), "emulated": self._emulated}})

    def forget(self) -> None:
        """Drop everything, so that the stage begins anew."""
        self._path.unlink(missing_ok=True)
        self._rows.clear()
        self.ends.clear()

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "end" in entry:
            self.ends.append(entry["end"])
        else:
            self._rows[entry["row"]["key"]] = entry["row"]

    def _append(self, entry: dict[str, Any]) -> None:
        self._take(entry)
        # A line's end before it, or it would be glued to one that was cut short.
        line = f"\n{json.dumps({'fingerprint': self._fingerprint, **entry})}\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
