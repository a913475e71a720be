"""What one stage has found: rows that are on disk as soon as they are known, and a summary at its end.

    NAME.rows.jsonl   one row a line, while the stage runs
    NAME.json         all of it, when the stage has ended in whatever way

A process may be killed between any two bytes. A row that was cut short does not count, and is measured again.
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


def write_atomically(path: Path, text: str) -> None:
    """Put a file in place whole, or leave what was there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


class Record:
    """Rows and summary of one stage, of one state of the sources on one card.

    Args:
        directory: where the files are.
        stage: its name.
        fingerprint: what the results hold for. Rows of another one are dropped.
        emulated: whether a CPU stands in for the GPU.
    """

    def __init__(self, directory: Path, stage: str, *, fingerprint: str, emulated: bool) -> None:
        self.stage, self.fingerprint, self.emulated = stage, fingerprint, emulated
        self._rows_path = directory / f"{stage}.rows.jsonl"
        self._path = directory / f"{stage}.json"
        self._rows: dict[str, dict[str, Any]] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self._read()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows.values())

    @property
    def status(self) -> str | None:
        """How the stage ended last, or None."""
        document = self._document()
        return None if document is None else str(document["status"])

    @property
    def reason(self) -> str:
        """Why it ended so; empty if it is done."""
        document = self._document()
        return "" if document is None else str(document["reason"])

    def has(self, key: str) -> bool:
        return key in self._rows

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep a row, on disk when this returns."""
        entry = {"key": key, **row} | ({"emulated": True} if self.emulated else {})
        self._rows[key] = entry
        line = json.dumps({"fingerprint": self.fingerprint, "row": entry})
        with self._rows_path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def end(
        self, status: str, *, seconds: float, reason: str = "", summary: Mapping[str, Any] | None = None
    ) -> None:
        """Write the stage's JSON.

        Args:
            status: "done", "partial" (out of time), "failed", or "unavailable" (cannot be had here).
            seconds: how long this run of it took.
            reason: of any status but "done".
            summary: figures of the whole stage.
        """
        document = {
            "stage": self.stage,
            "status": status,
            "emulated": self.emulated,
            "fingerprint": self.fingerprint,
            "seconds": round(seconds, 3),
            "reason": reason,
            "summary": dict(summary or {}),
            "rows": self.rows,
        }
        write_atomically(self._path, json.dumps(document, indent=1) + "\n")
        if status == DONE:
            self._rows_path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Drop everything, so that the stage begins anew."""
        self._rows.clear()
        self._rows_path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        document = self._document()
        for row in [] if document is None else document["rows"]:
            self._rows[row["key"]] = row
        if not self._rows_path.exists():
            return
        text = self._rows_path.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("fingerprint") == self.fingerprint:
                self._rows[entry["row"]["key"]] = entry["row"]
        if text and not text.endswith("\n"):  # or the next row would be glued to what was cut short
            with self._rows_path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def _document(self) -> dict[str, Any] | None:
        """Return the stage's JSON, if it is there, whole, and of this fingerprint."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if document.get("fingerprint") == self.fingerprint else None
