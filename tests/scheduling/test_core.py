"""The core of the scheduler needs neither TensorFlow nor Keras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import overlap_train.scheduling

PACKAGE = str(Path(overlap_train.scheduling.__file__).parents[1])


def test_core_imports_without_tensorflow():
    """The package's own `__init__` may import the trainer, so a bare one stands in its place."""
    code = (
        "import sys, types; "
        f"package = types.ModuleType('overlap_train'); package.__path__ = [{PACKAGE!r}]; "
        "sys.modules['overlap_train'] = package; "
        "import overlap_train.scheduling as s; "
        "import overlap_train.scheduling.segments, overlap_train.scheduling.service; "
        "s.simulate, s.Engine, s.CostModel, s.MultiModelScheduler; "
        "sys.exit(any(name in sys.modules for name in ('tensorflow', 'keras')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
