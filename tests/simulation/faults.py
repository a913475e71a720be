"""The planted faults of `faults.patch`: texts of the package, what takes their places, and who finds that."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).with_name("faults.patch")
_FOUND_BY = "# found by "


@dataclass
class Fault:
    """A fault.

    Attributes:
        name: for people.
        what: it does, in words.
        found_by: the tests that find it; "" is the simulation.
        changes: by module of the package, the old and new text of each place.
    """

    name: str
    what: str
    found_by: str = ""
    changes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    @property
    def is_of_serving(self) -> bool:
        """Whether it is in what serves networks."""
        return any(module.startswith("scheduling.") for module in self.changes)


def read_faults() -> dict[str, Fault]:
    """Return all faults by name."""
    faults: list[Fault] = []
    for block in FILE.read_text(encoding="utf-8").split("\n\n"):
        for line in block.splitlines() if block.startswith("# ") else ():
            if line.startswith(_FOUND_BY):
                faults[-1].found_by = line.removeprefix(_FOUND_BY)
            elif line.startswith("# "):
                faults.append(Fault(*line[2:].split(": ", 1)))
            elif line.startswith("--- "):
                path = line[4:].removeprefix("overlap_train/").removesuffix(".py")
                places = faults[-1].changes.setdefault(path.replace("/", "."), [])
                places.append(("", ""))
            else:
                places[-1] = _longer(*places[-1], line)
    return {fault.name: fault for fault in faults}


def _longer(old: str, new: str, line: str) -> tuple[str, str]:
    """Add a line of a patch to the text before it and to that behind it."""
    text = f"{line[1:]}\n"
    return old + text * (line[0] != "+"), new + text * (line[0] != "-")
