"""The journal of a comparison: what each of its runs came to, so that one that was cut off can go on.

`runs.jsonl` lies in the output directory: a line that says on what and with which arguments the comparison
was begun, then a line for each finished run, forced to the disk before the next run begins. A line that a
kill has torn is dropped. From one thread; one process at a time writes, which a lock ensures.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import psutil

_NAME = "runs.jsonl"
_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = ("overlap_train/**/*.py", "overlap_train/conv/native/*", "scripts/bench/*.py")
# Below this share of what we used ourselves, the system does not count the time of its processors.
_COUNTED = 0.5
_SHORTEST_S = 1.0  # of what is counted: the system's clock has ticks of 10 ms


def _identity(machine: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what has to be the same when a comparison goes on, by names that a message can show."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in _ROOT.glob(pattern) if path.is_file()):
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    values = {
        "CPU": machine["cpu"],
        "cores": machine["cores"],
        "memory in GiB": round(machine["memory_bytes"] / 2**30),
        "GPUs": machine["gpus"],
        "system": machine["system"],
        "Python": machine["python"],
        **machine["versions"],
        "the sources' digest": digest.hexdigest()[:12],
        **{f"--{name}": value for name, value in arguments.items()},
    }
    return dict(json.loads(json.dumps(values, default=str)))


class Journal:
    """What the runs of one comparison came to, kept as they end in `folder/runs.jsonl`. A context manager.

    With `resume` it goes on with what is there, and otherwise puts that aside, as `runs.before.jsonl`.
    `machine` is that on which the comparison was begun, with its date.
    """

    def __init__(
        self, folder: Path, machine: Mapping[str, Any], arguments: Mapping[str, Any], *, resume: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / _NAME
        self._values: dict[str, Any] = {}
        self._others: list[float | None] = []
        self.machine = dict(machine)
        self._file = self._locked()
        try:
            self._begin(_identity(machine, arguments), resume)
        except BaseException:
            self._file.close()
            raise
        self.found = len(self._values)

    def once(self, key: str, work: Callable[[], Any], *, keep: Callable[[Any], bool] | None = None) -> Any:
        """Returns what a run came to: read back, unless `keep` refuses that, or worked out and written."""
        if key in self._values and (keep is None or keep(self._values[key])):
            return self._values[key]
        before = time.monotonic(), _busy_s(), _own_s()
        self._values[key] = json.loads(json.dumps(work()))
        line = {"key": key, "value": self._values[key]}
        if time.monotonic() - before[0] >= _SHORTEST_S:
            line["others"] = _other_cores(*before)
            self._others.append(line["others"])
        self._append(line)
        return line["value"]

    @property
    def others_line(self) -> str:
        """What else ran on the machine meanwhile, in a sentence."""
        mean = self.other_cores
        if mean is None:
            return "How busy other programs kept the machine is not known."
        return f"Other programs used {mean:.2f} cores during a run on average."

    @property
    def other_cores(self) -> float | None:
        """The cores that other programs used on average; None if that is not known."""
        known = [cores for cores in self._others if cores is not None]
        return sum(known) / len(known) if known and len(known) == len(self._others) else None

    def close(self) -> None:
        """Lets another process write."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _locked(self) -> IO[bytes]:
        file = self._path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise ValueError(f"another comparison is writing to {self._path.parent}") from None
        return file

    def _begin(self, now: dict[str, Any], resume: bool) -> None:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        whole = lines[:-1]  # behind the last line break is nothing, or what a kill has left of a line
        if whole and resume:
            self._read(whole, now)
            self._file.truncate(sum(len(line) + 1 for line in whole))
            return
        if len(whole) > 1:
            self._path.with_name("runs.before.jsonl").write_bytes(b"\n".join(whole) + b"\n")
        self._file.truncate(0)
        self._append({"identity": now, "machine": self.machine})

    def _read(self, lines: list[bytes], now: dict[str, Any]) -> None:
        try:
            head, *entries = [json.loads(line) for line in lines]
            begun, self.machine = head["identity"], head["machine"]
            for entry in entries:
                self._values[entry["key"]] = entry["value"]
                if "others" in entry:
                    self._others.append(entry["others"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} is no journal of a comparison: {error!r}") from error
        names = [name for name in {**begun, **now} if begun.get(name) != now.get(name)]
        if names:
            what = "; ".join(f"{name} was {begun.get(name)!r}, is {now.get(name)!r}" for name in names)
            raise ValueError(
                f"{self._path.parent} holds runs that do not belong together with new ones: {what}. "
                "Go on as they were begun, or begin anew without --resume"
            )

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _other_cores(begin_s: float, busy_s: float, own_s: float) -> float | None:
    """Returns the cores that others used, on average; None where the system does not say how busy it was."""
    busy_s, own_s = _busy_s() - busy_s, _own_s() - own_s
    if busy_s < _COUNTED * own_s:
        return None
    return max(0.0, busy_s - own_s) / max(1e-3, time.monotonic() - begin_s)


def _busy_s() -> float:
    times = psutil.cpu_times()
    counted = ("user", "nice", "system", "irq", "softirq")
    return sum(float(getattr(times, name, 0.0)) for name in counted)


def _own_s() -> float:
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        with contextlib.suppress(OSError):
            usage = resource.getrusage(who)
            used += usage.ru_utime + usage.ru_stime
    return used
