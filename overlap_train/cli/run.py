"""`overlap-train run train.py`: runs a script as `python` does, with its `fit` and `evaluate` overlapped."""

from __future__ import annotations

import argparse
import os
import runpy

from overlap_train.cli.report import Report
from overlap_train.cli.script import add_script, as_main, require_script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: a script, and what follows is the script's."""
    example = "overlap-train run train.py --epochs 5."
    add_script(parser, "a Python script that calls keras.Model.fit", example)


def run(options: argparse.Namespace) -> Report | None:
    """Run the script; whatever it raises, and the status with which it ends, are the command's."""
    require_script(options.script)
    from overlap_train.routing import install, uninstall

    install()
    try:
        with as_main(options.script, options.rest):
            runpy.run_path(os.path.abspath(options.script), run_name="__main__")
    finally:
        uninstall()
    return None
