"""A wheel brings the compiled convolution along; where it does not fit it is as if there were none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import overlap_train
from overlap_train.conv import bundled, library
from overlap_train.conv.build import build
from overlap_train.conv.bundled import bundle, bundled_library
from tests import interpreters

PACKAGE = Path(overlap_train.__file__).parent

# The process is a fork of one that has imported the checkout's package with TensorFlow.
PROGRAM = """
import sys
for name in [name for name in sys.modules if name.split(".")[0] == "overlap_train"]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[1])
import overlap_train
from overlap_train.conv import library
assert overlap_train.__file__.startswith(sys.argv[1])
print(library.is_built(), library.is_available())
"""


@pytest.fixture
def installed(tmp_path, native):
    """The package as a wheel with a library installs it."""
    shutil.copytree(
        PACKAGE, tmp_path / "overlap_train", ignore=shutil.ignore_patterns("__pycache__", "prebuilt", ".*")
    )
    bundle(build(), tmp_path / "overlap_train" / "conv" / "prebuilt")
    return tmp_path


def run(installed, cache):
    """Returns whether a process without compiler and cache has the convolution, and has it loaded."""
    tools = dict.fromkeys(("CXX", "CMAKE", "PATH"), "/nonexistent")
    environment = os.environ | tools | {"OVERLAP_TRAIN_CACHE_DIR": str(cache), "CUDA_VISIBLE_DEVICES": ""}
    done = interpreters.run(["-c", PROGRAM, str(installed)], env=environment, check=True, timeout=100)
    return done.stdout.split()[-2:]


def test_it_is_loaded_without_a_compiler_and_without_a_cache(installed):
    cache = installed / "cache"
    assert run(installed, cache) == ["True", "True"]
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["version", "library"])
def test_one_that_does_not_fit_is_as_good_as_none(installed, damage):
    prebuilt = installed / "overlap_train" / "conv" / "prebuilt"
    if damage == "version":
        manifest = prebuilt / "manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"tensorflow": "1.0"}))
    else:
        (prebuilt / "liboverlap_conv.so").write_bytes(b"no library")
    assert run(installed, installed / "cache")[1] == "False"


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, None])
def test_a_manifest_that_says_nothing_is_none(monkeypatch, tmp_path, text):
    monkeypatch.setattr(bundled, "_DIRECTORY", tmp_path)
    (tmp_path / "liboverlap_conv.so").write_bytes(b"")
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    assert bundled_library() is None


def test_a_checkout_has_none():
    assert not library.bundled_library()
