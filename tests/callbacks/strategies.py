"""Values that callbacks may keep, for the tests of this folder."""

from __future__ import annotations

import collections
import functools
import json
import math
import weakref
from pathlib import Path
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from overlap_train._callbacks.packing import pack, unpack
from overlap_train._callbacks.rewind import files_of, mark_files, rewind_files
from overlap_train._callbacks.state import (
    CallbackState,
    capture,
    capture_all,
    check_all,
    restore,
    restore_all,
)
from overlap_train._callbacks.values import Resource, VariableValue, copied, put_back
from overlap_train._checkpoint import container
from overlap_train._checkpoint.state import CheckpointState
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.sets(st.integers()) | st.frozensets(st.text()),
    lambda inner: st.lists(inner)
    | st.lists(inner).map(tuple)
    | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner)
    | st.lists(inner).map(collections.deque),
    max_leaves=8,
)  # fmt: skip
