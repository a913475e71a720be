"""Hazards of killed comparisons: a child that goes on and takes the cores of the next one."""

import subprocess
import sys

import psutil
import pytest

PARENT = """
import subprocess, sys
from scripts.bench.orphans import ENDS_WITH_PARENT
wait = "import threading; threading.Event().wait()"
child = subprocess.Popen([sys.executable, "-c", wait], preexec_fn=ENDS_WITH_PARENT)
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's signal of a parent's death")
def test_a_child_ends_with_a_parent_that_was_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate(timeout=60)
    _, alive = psutil.wait_procs([child], timeout=60)
    assert alive == []
