"""The tests mirror the package: a module has the file of its name, or the table says which file tests it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.rooms import ROOT

TESTS = Path(__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")

# Modules without a file of their own, and the file that tests them.
TESTED_IN = {
    # The reader of callbacks is one thing: what a hook's code may do shows in what is made of all of it.
    "_callbacks/attributes.py": "callbacks/test_facts.py",
    "_callbacks/calls.py": "callbacks/test_reader.py",
    "_callbacks/expressions.py": "callbacks/test_reader.py",
    "_callbacks/outcomes.py": "callbacks/test_delivery.py",
    # Names, constants and records that others go by.
    "_callbacks/doings.py": "callbacks/test_hook_doings.py",
    "_callbacks/vocabulary.py": "callbacks/test_hook_doings.py",
    "_fit/outcome.py": "fit/test_run.py",
    "_validation/named_runner.py": "validation/test_suite.py",
    "_validation/set_request.py": "validation/test_sets.py",
    "_support/version.py": "test_public_surface.py",
    # What computes is compared with Keras's or TensorFlow's through the layer or the operation around it.
    "_training/kernels/recurrent_passes.py": "training/kernels/test_recurrent.py",
    "conv/gradients.py": "conv/test_operation.py",
    "models/alexnet.py": "scheduling/test_networks.py",
    # Needs Grain, and is Grain's iterators under a fit.
    "_keras/grain_data.py": "whole_fits/test_library_sources.py",
}

# Files in a room that stand for no module of it: what only several show, or only a process of its own.
OF_SEVERAL = {
    "callbacks/test_callbacks.py",
    "callbacks/test_stock_state.py",
    "checkpoint/test_crashes.py",
    "checkpoint/test_fuzz.py",
    "conv/test_distribution.py",
    "conv/test_native.py",
    "conv/test_sharing.py",
    "keras/test_door.py",
    "parallel/test_conversations.py",
    "parallel/test_launchers.py",
    "scheduling/test_core.py",
    "scheduling/test_examples.py",
    "scheduling/test_models.py",
    "scheduling/test_networks.py",
    "scheduling/test_pieces.py",
    "training/replicas/test_single_replica.py",
    "zero_copy/test_example.py",
    "zero_copy/test_processes.py",
    "zero_copy/test_refusals.py",
}


def named(path: Path) -> str:
    """Returns a module or a test as the tables name it."""
    return path.relative_to(ROOT if path.is_relative_to(ROOT) else TESTS).as_posix()


def mirrored(module: Path) -> Path:
    """Returns the file that a module's tests have by its name, without underscores around it."""
    *folders, name = (part.strip("_") for part in module.relative_to(ROOT).with_suffix("").parts)
    return TESTS.joinpath(*folders, f"test_{name}.py")


def in_rooms() -> list[Path]:
    """Returns the tests in folders that are called as one of the package."""
    rooms = {path.name.strip("_") for path in ROOT.iterdir() if path.is_dir()}
    return sorted(path for room in rooms for path in TESTS.glob(f"{room}/**/test_*.py"))


def test_a_module_has_a_file_of_its_name_or_is_in_the_table():
    missing = [named(module) for module in MODULES if not mirrored(module).exists()]
    untold = {module for module in missing if module not in TESTED_IN}
    assert not untold, "write tests/<room>/test_<module>.py, or say in TESTED_IN which file tests it"


def test_the_table_names_modules_without_a_file_of_their_own_and_files_that_exist():
    assert TESTED_IN.keys() <= set(map(named, MODULES))
    assert not [name for name in TESTED_IN if mirrored(ROOT / name).exists()]
    assert not [file for file in TESTED_IN.values() if not (TESTS / file).exists()]


def test_no_test_is_skipped_for_want_of_what_every_installation_has():
    """An import that fails has to fail the test."""
    always = "absl|keras|numpy|overlap_train|packaging|psutil|rich|tensorflow|tqdm"
    skips = re.compile(rf'importorskip\(\s*"(?:{always})\b')
    assert [named(path) for path in TESTS.rglob("test_*.py") if skips.search(path.read_text())] == []


def test_a_file_in_a_room_stands_for_a_module_of_it_or_is_in_the_table():
    of_modules = set(map(mirrored, MODULES))
    found = {named(path) for path in in_rooms() if path not in of_modules}
    assert found == OF_SEVERAL
