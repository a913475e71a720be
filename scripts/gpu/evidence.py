"""Builds, checks and times our CUDA kernels on a GPU, without TensorFlow; see scripts/gpu_evidence.sh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scripts.gpu import kernel_stages, timing_stages
from scripts.gpu.driver import Evidence
from scripts.gpu.evidence_page import SECTIONS
from scripts.gpu.stages import Stage

__all__ = ["EVIDENCE", "main"]

_SOURCES = ("overlap_train/conv/native", "scripts/gpu/cuda_library.py", "scripts/gpu/kernel_stages.py")
EVIDENCE = Evidence(
    "scripts.gpu.evidence",
    "scripts/gpu_evidence.sh",
    "The CUDA kernels",
    "",
    (
        Stage("build", kernel_stages.build, 120, _SOURCES),
        Stage("check", kernel_stages.check, 200, _SOURCES),
        Stage("timing", timing_stages.timing, 200, (*_SOURCES, "scripts/gpu/timing_stages.py")),
    ),
    SECTIONS,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=EVIDENCE.script, description=__doc__)
    EVIDENCE.add_arguments(parser)
    try:
        return EVIDENCE.run(parser.parse_args(arguments))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
