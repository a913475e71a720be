"""Many fits under two and four replicas, on two and four hosts: the numbers of one device, or refused."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.networks import assert_same_history
from tests.parallel.several_cases import CASES, PARTS
from tests.parallel.test_hosts import finish, free_addresses, start_tasks

TIMEOUT_S = 1200
SETTINGS = [("replicas", 2), ("replicas", 4), ("hosts", 2), ("hosts", 4)]


def test_there_are_sixty_cases():
    assert len(CASES) >= 60


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    """Returns what makes the results of one device, once for each part of the table."""
    made: dict[str, Path] = {}

    def results(part: str) -> Path:
        if part not in made:
            made[part] = run("one", 1, list(PARTS[part]), tmp_path_factory.mktemp("one"))
        return made[part]

    return results


@pytest.mark.nightly
@pytest.mark.timeout(4000)
@pytest.mark.parametrize(("kind", "count"), SETTINGS, ids=[f"{count} {kind}" for kind, count in SETTINGS])
@pytest.mark.parametrize("part", PARTS)
def test_each_fit_is_that_of_one_device_or_refused(kind, count, part, on_one_device, tmp_path):
    expected = on_one_device(part)
    actual = run(kind, count, list(PARTS[part]), tmp_path / kind)
    wrong = {}
    for name in PARTS[part]:
        try:
            compare(name, actual / name, expected / name, kind, count if kind == "hosts" else 1)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong, "\n\n".join(f"{name}: {text[:1500]}" for name, text in wrong.items())


def compare(name: str, actual: Path, expected: Path, kind: str, processes: int) -> None:
    """Raises AssertionError unless a case came out as it has to, in all processes."""
    case = CASES[name]
    refused = case.refused if case.refused is not None or kind != "hosts" else case.refused_on_hosts
    for index in range(processes):
        result = actual / str(index) / "result.json"
        assert result.exists(), (actual.parent / f"errors{index}.txt").read_text()[-3000:]
        found = json.loads(result.read_text())
        if refused is not None:
            assert refused in found.get("message", ""), found
            assert found.get("steps") == 0, found
            continue
        assert "error" not in found, found
        wanted = json.loads((expected / "0" / "result.json").read_text())
        assert "error" not in wanted, wanted
        assert found["epoch"] == wanted["epoch"]
        if not case.only_weights:
            assert_same_history(found["history"], wanted["history"], case.rtol)
        if index == 0:
            assert found["files"] == wanted["files"]
        with (
            np.load(actual / str(index) / "weights.npz") as ours,
            np.load(expected / "0" / "weights.npz") as theirs,
        ):
            assert ours.files == theirs.files
            for number in theirs.files:
                np.testing.assert_allclose(ours[number], theirs[number], case.rtol, case.atol, err_msg=number)


def run(kind: str, count: int, names: list[str], directory: Path) -> Path:
    """Runs cases in the processes of a setting; the comparison of a missing case shows what ended them."""
    arguments = ["-m", "tests.parallel.several_target", kind, str(count), str(directory), *names]
    cluster = {"worker": free_addresses(count if kind == "hosts" else 1)}
    processes = start_tasks(arguments, cluster, directory)
    with contextlib.suppress(subprocess.TimeoutExpired):  # the cases have not ended then
        finish(directory, processes, TIMEOUT_S)
    return directory
