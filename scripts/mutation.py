"""Changes functions of the core in one place at a time, and tells which changes the default tests let pass.

A change is one of mutmut's, in the body of a function; `raise` statements and texts with a blank stay as they
are. mutmut's own runner would run the tests before it forks, which TensorFlow does not survive, and leaves
out most decorated functions. Here a change is tried by a fork of a process that has imported TensorFlow and
has run nothing of it, in a copy of the project. It gets tests that run its lines, as `.coverage` says: one of
each function first, the room's own and the fastest first, `SECONDS` of them. Then come simulated threads,
where the file has some. A test that fails or is late without the change too is left out.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import functools
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    *(ROOT / "overlap_train").glob("_snapshot.py"),
    *(ROOT / "overlap_train").glob("_[cf][hi][et]*/*.py"),
]
TIMES, SIMULATION = ROOT / ".coverage_times", "tests.simulation"
SECONDS, SCHEDULES, SIMULATED = 30.0, 200, ("/_snapshot", "/_fit/", "/resume")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Names the test to coverage and notes its time: scripts/coverage.sh has this module as a plugin."""
    import coverage

    began = time.monotonic()
    coverage.Coverage.current().switch_context(item.nodeid)
    result = yield
    coverage.Coverage.current().switch_context("")
    with TIMES.open("a") as file:
        file.write(json.dumps([item.nodeid, time.monotonic() - began]) + "\n")
    return result


def changes(path: Path) -> dict[str, dict]:
    """Return the changes of a file by their names, each with its lines and those of its function."""
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.mutators import mutation_operators

    left_out = (libcst.Annotation, libcst.Decorator, libcst.Parameters, libcst.Raise)
    texts = (libcst.SimpleString, libcst.FormattedString, libcst.ConcatenatedString)
    wrapper, found, functions = MetadataWrapper(libcst.parse_module(path.read_text())), {}, []
    code, file = wrapper.module.code_for_node, str(path.relative_to(ROOT))

    class Visitor(libcst.CSTVisitor):
        METADATA_DEPENDENCIES = (PositionProvider,)

        def on_visit(self, node):
            is_call = isinstance(node, libcst.Call) and code(node.func) in ("len", "isinstance", "cast")
            if is_call or isinstance(node, left_out) or (isinstance(node, texts) and " " in code(node)):
                return False
            place = self.get_metadata(PositionProvider, node, None)
            for kind, operator in mutation_operators if functions and place else ():
                for new in operator(node) if isinstance(node, kind) else ():
                    name = f"{file}:{place.start.line}:{place.start.column} {code(node)} -> {code(new)}"
                    lines = [(each.start.line, each.end.line) for each in (place, functions[-1])]
                    found[name] = {"file": file, "lines": lines, "nodes": (wrapper.module, node, new)}
            if isinstance(node, libcst.FunctionDef):
                functions.append(place)
            return True

        def on_leave(self, node):
            if isinstance(node, libcst.FunctionDef):
                functions.pop()

    wrapper.visit(Visitor())
    return found


def sample(count: int, seed: int) -> tuple[int, list[dict]]:
    """Return how many changes there are, and some of them with the text of the changed file."""
    every, chosen = {name: each for path in sorted(FILES) for name, each in changes(path).items()}, []
    for name in random.Random(seed).sample(sorted(every), len(every)):
        each = every[name]
        module, old, new = each.pop("nodes")
        with contextlib.suppress(SyntaxError):
            text = module.deep_replace(old, new).code
            compile(text, name, "exec", dont_inherit=True)
            chosen.append(each | {"name": name, "text": text})
        if len(chosen) == count:
            break
    return len(every), chosen


def add_tests(chosen: list[dict]) -> None:
    """Give each change the tests that are to find it, and the seconds that the slowest of them takes."""
    import coverage

    data = coverage.CoverageData(str(ROOT / ".coverage"))
    data.read()
    seconds = dict(map(json.loads, TIMES.read_text().splitlines()))
    running = {str(path.relative_to(ROOT)): data.contexts_by_lineno(str(path)) for path in FILES}
    for each in chosen:
        room = each["file"].split("/")[1].removesuffix(".py").strip("_")
        for first, last in each["lines"]:
            found = (running[each["file"]].get(line, ()) for line in range(first, last + 1))
            if names := seconds.keys() & {name for names in found for name in names}:
                break
        turns, ordered, own = collections.Counter(), [], (f"tests/{room}/", f"tests/test_{room}.py")
        for name in sorted(names, key=lambda name: (not name.startswith(own), seconds[name], name)):
            ordered.append((turns[name.split("[")[0]], name))
            turns[name.split("[")[0]] += 1
        each["tests"], left = [], SECONDS
        for _, name in sorted(ordered, key=lambda pair: pair[0]):
            if seconds[name] <= left or not each["tests"]:
                each["tests"].append(name)
                left -= seconds[name]
        each["limit_s"] = max([20.0, *(5 * seconds[name] for name in each["tests"])])


def prepare() -> None:
    """Make this process one to fork: in a copy of the project, with TensorFlow imported."""
    place = tempfile.mkdtemp(prefix="mutation-")
    shutil.copytree(ROOT, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    os.chdir(place)
    sys.path[:] = [place, *(path for path in sys.path if path not in ("", str(ROOT)))]
    os.environ |= {"PYTHONPATH": place, "PYTHONHASHSEED": "0", "TMPDIR": f"{place}/.tmp"}
    os.environ |= {"OVERLAP_TRAIN_TESTS_FEWER_PASSES": "1", "TF_NUM_INTEROP_THREADS": "8"}
    for name in ("tensorflow", "keras"):
        __import__(name)


def ends(function, limit_s: float) -> str:
    """Return whether a fork that calls a function `passed`, `failed`, had a `late` test, or was `cut`."""
    shutil.rmtree(".tmp", ignore_errors=True)
    os.mkdir(".tmp")
    Path("running").write_text("")
    child = os.fork()
    if not child:
        status = 3
        try:
            os.setpgid(0, 0)
            said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            status = function()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    end, ended, status = time.monotonic() + limit_s, 0, 1
    while not ended and time.monotonic() < end:
        time.sleep(0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return "cut"
    if "+ Timeout +" in Path("said").read_text(errors="replace"):
        return "late"
    return "failed" if status else "passed"


class Noting:
    def pytest_runtest_logstart(self, nodeid):
        Path("running").write_text(nodeid)


def run(tests: list[str], limit_s: float) -> tuple[str, str]:
    """Return how tests and perhaps the simulation ended, and what began last: it failed or is late."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--basetemp=.tmp/tests", f"--timeout={limit_s}"]
    how, test, names = "passed", "", [name for name in tests if name != SIMULATION]
    if names:
        how = ends(lambda: int(pytest.main([*options, *names], plugins=[Noting()])), 5 * SECONDS + limit_s)
        test = Path("running").read_text()
    if how == "passed" and SIMULATION in tests:
        how, test = ends(simulate, 5 * SECONDS), SIMULATION
    return how, test


def simulate() -> int:
    from tests.simulation.__main__ import main

    sys.argv = [SIMULATION, "--count", str(SCHEDULES)]
    return main()


@functools.cache
def is_sound(test: str, limit_s: float) -> bool:
    """Whether a test passes without a change, in half the time that it has with one."""
    return run([test], limit_s / 2)[0] == "passed"


def attempt(change: dict) -> dict:
    """Return how the tests of a change ended, or `unrun`, and the test that found it."""
    path, tests, began = Path(change["file"]), list(change["tests"]), time.monotonic()
    original, times, how, test = path.read_text(), path.stat(), "unrun", ""
    if any(each in change["file"] for each in SIMULATED):
        tests.append(SIMULATION)
    while tests:
        _write(path, change["text"])
        how, test = run(tests, change["limit_s"])
        _write(path, original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        if how in ("passed", "cut"):
            test = ""
        elif test and not is_sound(test, change["limit_s"]):
            tests.remove(test)
            how, test = "unrun", ""
            continue
        elif not test and run(["--collect-only", *change["tests"]], 60)[0] != "passed":
            how = "unrun"
        break
    seconds = round(time.monotonic() - began, 1)
    return {"name": change["name"], "ended": how, "by": test, "seconds": seconds, "tests": len(tests)}


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def print_table(results: list[dict]) -> None:
    columns = ("failed", "late", "passed", "cut", "unrun")
    print("| file | changes |", " | ".join(columns), "| found |\n| --- |", "---: | " * 7)
    counts = collections.defaultdict(collections.Counter)
    for each in results:
        for name in (each["name"].split(":")[0], "all"):
            counts[name][each["ended"]] += 1
    for name, count in sorted(counts.items(), key=lambda pair: (pair[0] == "all", pair[0])):
        found = (count["failed"] + count["late"]) / count.total()
        print(f"| {name} | {count.total()} |", " | ".join(str(count[c]) for c in columns), f"| {found:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/mutation.sh", description=__doc__)
    parser.add_argument("file", type=Path, help="the results, a line each: what is there is not tried again")
    parser.add_argument("--count", type=int, default=500, help="the size of the sample")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", nargs="+", metavar="TEST", help="run these for all that no test has found")
    arguments = parser.parse_args()
    lines = arguments.file.read_text().splitlines() if arguments.file.exists() else ()
    results = {each["name"]: each for each in map(json.loads, lines)}
    total, chosen = sample(arguments.count, arguments.seed)
    add_tests(chosen)
    if arguments.again:
        chosen = [each | {"tests": arguments.again, "limit_s": 60.0} for each in chosen]
    done = {name for name, each in results.items() if not arguments.again or each["by"]}
    os.nice(10)
    context = multiprocessing.get_context("fork")
    workers = concurrent.futures.ProcessPoolExecutor(arguments.processes, context, prepare)
    with workers, arguments.file.open("a", buffering=1) as file:
        begun = [workers.submit(attempt, each) for each in chosen if each["name"] not in done]
        for future in concurrent.futures.as_completed(begun):
            result = future.result()
            file.write(json.dumps(result) + "\n")
            results[result["name"]] = result
    print(f"{len(results)} of {total} changes:\n")
    print_table(list(results.values()))


if __name__ == "__main__":
    main()
