"""Stages: each in a process of its own, within a budget, and not again once it is done.

A stage that hangs, or leaves the GPU in an error, is ended alone. What it had found until then stays, and the
next run goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scripts.bench.children import in_group

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
DONE, PARTIAL, FAILED, UNAVAILABLE = "done", "partial", "failed", "unavailable"
# What a re-run does not repeat. "unavailable": the machine lacks what the stage needs.
ENDED = frozenset({DONE, UNAVAILABLE})
_CODE = frozenset({".py", ".h", ".cc", ".cu", ".txt"})
_GRACE_S = 10.0  # for a stage to write what it has, after its time is up
_LEAST_S = 5.0  # a stage is not begun with less


class OutOfTime(Exception):
    """A stage stops here; the next run goes on."""


class Unavailable(Exception):
    """The machine lacks what a stage needs; the message says what."""


@dataclass(frozen=True)
class Context:
    """What a stage gets."""

    record: Record
    directory: Path  # for files of its own, such as a library that it builds
    emulate: bool  # a CPU stands in for the GPU
    quick: bool  # do the least that shows that everything runs
    deadline_s: float  # on `time.monotonic()`

    @property
    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def todo(self, items: Iterable[T], key: Callable[[T], str]) -> Iterator[T]:
        """Yield the items that have no row yet, as long as there is time; then raise OutOfTime."""
        for item in items:
            if self.record.has(key(item)):
                continue
            if self.left_s <= 0:
                raise OutOfTime(f"out of time at {key(item)}")
            yield item


@dataclass(frozen=True)
class Stage:
    """A step of the evidence."""

    name: str
    body: Callable[[Context], dict[str, Any]]  # does it; returns the summary
    limit_s: float
    sources: tuple[str, ...] = ()  # files and folders, from the root, that decide the results
    expected_s: float = 0.0  # on an H100: measured, or where it has never run, estimated
    title: str = ""  # of its section of the page; without one its rows belong to the stage before it
    text: Callable[[list[dict[str, Any]]], str] = str  # what makes the section's body from the rows
    by_rows: bool = False  # whether a call that ends takes up no more than a row of it again

    def fingerprint(self, card: str) -> str:
        """Return a digest of the sources and the card."""
        digest = hashlib.sha256(card.encode())
        for source in self.sources:
            path = ROOT / source
            files = sorted(p for p in path.iterdir() if p.suffix in _CODE) if path.is_dir() else [path]
            for file in files:
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:16]

    def record(self, directory: Path, card: str, *, emulate: bool) -> Record:
        """Return what is known of it."""
        return Record(directory, self.name, fingerprint=self.fingerprint(card), emulated=emulate)


def run_body(stage: Stage, context: Context) -> int:
    """Do a stage in this process; return the exit status, 0 unless it failed."""
    began_s = time.monotonic()

    def end(status: str, reason: str = "", summary: dict[str, Any] | None = None) -> None:
        seconds = time.monotonic() - began_s
        context.record.end(status, seconds=seconds, reason=reason, summary=summary)

    try:
        summary = stage.body(context)
    except OutOfTime as stop:
        end(PARTIAL, str(stop))
    except Unavailable as lack:
        end(UNAVAILABLE, str(lack))
    except Exception as error:
        traceback.print_exc()
        end(FAILED, f"{type(error).__name__}: {error}")
        return 1
    else:
        end(DONE, summary=summary)
    return 0


def go(
    stages: Sequence[Stage],
    command: Sequence[str],
    record: Callable[[Stage], Record],
    directory: Path,
    *,
    budget_s: float,
    after_each: Callable[[], None],
    again: bool = False,
) -> dict[str, str]:
    """Do what is left to do of stages, or with `again` everything, the most important first, within a budget.

    `command` is that of a process that does one stage; its name and the seconds that it has are appended.
    `record` returns what is known of one. `after_each` is called behind each stage, also one that is cut off.

    Returns:
        How each stage ended, "not run" for want of time.
    """
    deadline_s = time.monotonic() + budget_s
    if again:  # all at once: a run that is cut off must not leave some of them done
        for stage in stages:
            record(stage).forget()
    states = {}
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda n, _: sys.exit(128 + n)) for number in numbers}
    try:
        for stage in stages:
            left_s = deadline_s - time.monotonic() - _GRACE_S
            known = record(stage)
            if known.status in ENDED:
                print(f"{stage.name}: {known.status} before, skipped", flush=True)
            elif left_s < _LEAST_S:
                print(f"{stage.name}: no time left, run again", flush=True)
            else:
                try:
                    _one(stage, command, record, directory, min(stage.limit_s, left_s))
                finally:
                    after_each()
            states[stage.name] = record(stage).status or "not run"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return states


def _one(
    stage: Stage,
    command: Sequence[str],
    record: Callable[[Stage], Record],
    directory: Path,
    limit_s: float,
) -> None:
    """Run a stage's process, and note how it ended if it has not done so itself."""
    ends, began_s = len(record(stage).ends), time.monotonic()
    print(f"{stage.name}: at most {limit_s:.0f} s", flush=True)
    log = directory / f"{stage.name}.log"
    with (
        log.open("wb") as output,
        in_group([*command, stage.name, str(limit_s)], cwd=ROOT, stdout=output, stderr=output) as process,
    ):
        try:
            status: int | None = process.wait(limit_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            status = None
    seconds, after = time.monotonic() - began_s, record(stage)
    tail = log.read_text(errors="replace").strip().splitlines()[-1:]
    if not tail:
        log.unlink()
    if status is None:
        after.end(PARTIAL, seconds=seconds, reason="killed")
    elif len(after.ends) == ends:
        after.end(FAILED, seconds=seconds, reason=f"ended with status {status}: {' '.join(tail)}")
    print(f"{stage.name}: {after.status} after {seconds:.0f} s", flush=True)


def output_of(command: Sequence[str], context: Context) -> tuple[int, list[str]]:
    """Run a program for as long as the stage has time; return its status and what it has printed, by line."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=max(context.left_s, 1.0)
        )
    except subprocess.TimeoutExpired as error:
        print((error.stdout or b"").decode(errors="replace"))  # into the stage's log
        raise OutOfTime(f"out of time in {Path(command[0]).name}") from error
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()


def verdict(states: Mapping[str, str], records: Sequence[Record]) -> int:
    """Say how a run ended; return its exit status: 0 done and right, 1 something wrong, 3 some left to do.

    A row is wrong if its "wrong" is not empty, or its "clean" is false.
    """
    rows = [row for record in records for row in record.rows]
    if FAILED in states.values() or any(row.get("wrong") or row.get("clean") is False for row in rows):
        print("something is wrong: see the page")
        return 1
    if left := [name for name, state in states.items() if state not in ENDED]:
        print(f"still to be done: {', '.join(left)}; run the same command again")
        return 3
    return 0


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
