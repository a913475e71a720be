"""A pytest plugin, `-p tests.simulation.planting`: plants the fault that OVERLAP_TRAIN_FAULT names."""

import os
import sys

from tests.simulation import points
from tests.simulation.faults import read_faults

points.Loader.fault = read_faults()[os.environ["OVERLAP_TRAIN_FAULT"]]
points.Loader.adds_points = False
sys.meta_path.insert(0, points.Finder())
