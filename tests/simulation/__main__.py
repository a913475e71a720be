"""Runs simulated fits, each under a schedule of its own.

    python -m tests.simulation --count 10000 --processes 2   seeds 0 to 9999
    python -m tests.simulation --seed 4711                   one of them again, and what it did
    python -m tests.simulation --count 10000 --serving        several networks in service
    python -m tests.simulation --count 2000 --fault NAME     with a planted fault of faults.patch
    python -m tests.simulation --count 10000 --table          how soon each planted fault is found
    python -m tests.simulation --count 10000 --table A B      how soon these are

It ends with status 1 if a fit does what it may not do, and with `--table` if a fault is not found.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tests.simulation import points
from tests.simulation.faults import Fault, read_faults

if TYPE_CHECKING:
    from tests.simulation.run import Report

_COLLECTED = 500  # schedules between two searches for garbage


def main() -> int:
    arguments = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":  # else sets of texts have another order in each process
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    warnings.simplefilter("ignore")  # of threads that are stuck, and of validations that are left out
    seeds = range(arguments.first, arguments.first + arguments.count)
    faults, count = read_faults(), arguments.processes
    if arguments.table is not None:
        names = arguments.table or [name for name, fault in faults.items() if not fault.found_by]
        print("| fault | what it does | schedules | how it shows |\n| --- | --- | ---: | --- |", flush=True)
        parts = [[faults[name] for name in names[i::count]] for i in range(count)]
        return int(any(_forked([lambda part=part: _find(part, seeds) for part in parts])))
    fault = faults[arguments.fault] if arguments.fault else None
    serving = arguments.serving or (fault is not None and fault.is_of_serving)
    run = _prepare(fault, serving=serving)
    if arguments.seed is not None:
        return _run(run, [arguments.seed], prints_all=True)
    return int(any(_forked([lambda i=i: _run(run, seeds[i::count]) for i in range(count)])))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="run this one only, and say what it did")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--processes", type=int, default=1, help="that share the seeds")
    parser.add_argument("--serving", action="store_true", help="several networks in service, and no fits")
    parser.add_argument("--fault", help="the name of a planted fault of faults.patch")
    parser.add_argument(
        "--table", nargs="*", metavar="FAULT", help="print how soon each planted fault is found"
    )
    return parser.parse_args()


def _prepare(fault: Fault | None, *, serving: bool) -> Callable[[int], Report]:
    """Load the package with its points, and perhaps with a fault; return what runs a seed."""
    points.install(fault)
    from tests.simulation import world

    if serving:
        from tests.simulation.serving import run
    else:
        from tests.simulation.run import run
    points.simulate_threads()
    world.replace_what_is_compiled()
    gc.collect()
    gc.freeze()
    gc.disable()
    return run


def _run(run: Callable[[int], Report], seeds: Iterable[int], *, prints_all: bool = False) -> int:
    """Run seeds until one fails; return 1 if one does."""
    switches = number = 0
    for number, seed in enumerate(seeds, 1):
        report = run(seed)
        switches += report.switches
        if number % _COLLECTED == 0:
            gc.collect()
        if report.error is not None or prints_all:
            print(f"seed {seed}: {report.switches} switches of threads, digest {report.digest}")
            print(report.scenario)
        if report.error is not None:
            traceback.print_exception(report.error)
            fault = points.Loader.fault
            options = f"--seed {seed}" + (f" --fault {fault.name}" if fault is not None else "")
            options += " --serving" * run.__module__.endswith("serving")
            print(f"FAILED after {number} schedules; again: python -m tests.simulation {options}")
            return 1
    print(f"{number} schedules, {switches} switches of threads")
    return 0


def _forked(functions: Iterable[Callable[[], int]]) -> list[int]:
    """Call functions at once, each in a process of its own; return what they return."""
    children = []
    for function in functions:
        child = os.fork()
        if not child:
            status = 1
            try:
                status = function()
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _find(faults: Iterable[Fault], seeds: range) -> int:
    """Print after how many schedules each fault is found; return 1 if one is not."""
    import keras  # noqa: F401  imported once, for all the processes that load the package with a fault

    status = False
    for fault in faults:
        reader, writer = os.pipe()

        def search(fault: Fault = fault, writer: int = writer) -> int:
            run = _prepare(fault, serving=fault.is_of_serving)
            for number, seed in enumerate(seeds, 1):
                error = run(seed).error
                if error is not None:
                    os.write(writer, f"{number} | {type(error).__name__}: {error}"[:400].encode())
                    return 0
            return 1

        status |= any(_forked([search]))
        os.close(writer)
        with os.fdopen(reader) as lines:
            found = lines.read().split("\n")[0] or "not found |"
        print(f"| {fault.name} | {fault.what} | {found} |", flush=True)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
