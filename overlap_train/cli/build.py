"""`overlap-train build`: compiles the convolution for this machine, into the user's cache."""

from __future__ import annotations

import argparse
import time

from overlap_train.cli.report import Finding, Report, one_line
from overlap_train.errors import NativeUnavailableError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--cuda", action="store_true", help="with the CUDA kernels (needs nvcc)")
    parser.add_argument("--force", action="store_true", help="compile even if the cache has it")
    parser.epilog = "example: overlap-train build --force"


def run(options: argparse.Namespace) -> Report:
    """Compile the convolution, or find it in the cache."""
    from overlap_train.conv.build import build

    start_s = time.monotonic()
    try:
        library = build(cuda=options.cuda, force=options.force)
    except NativeUnavailableError as error:
        finding = Finding("compiled", False, one_line(error, 2000), "mend")
        return Report("build", {"convolution": [finding]})
    seconds = time.monotonic() - start_s
    findings = [
        Finding("compiled", True, "yes"),
        Finding("library", str(library)),
        Finding("took", round(seconds, 3), f"{seconds:.1f} s"),
    ]
    return Report("build", {"convolution": findings})
