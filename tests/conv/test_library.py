"""A library that does not compile, load or fit is as good as none; a wheel brings one along."""

import ctypes.util
import json

import keras
import numpy as np
import pytest

from overlap_train import ExecutionPlan, Trainer, accelerate
from overlap_train.conv import build as conv_build
from overlap_train.conv import library, native_cache
from overlap_train.conv.native_cache import bundled_library
from overlap_train.errors import NativeUnavailableError


def convolutional():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6, 6, 2)), keras.layers.Conv2D(3, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


X, Y = np.ones((16, 6, 6, 2), "float32"), np.zeros(16, "int32")


@pytest.fixture
def fresh_library(monkeypatch):
    """A process that has not looked for the library yet."""
    monkeypatch.setattr(library, "_state", library._State())


@pytest.mark.nightly
def test_fit_does_not_notice_a_compiler_that_does_not_run(compiler, fresh_library) -> None:
    compiler(b"#!/bin/sh\nexit 3\n")
    assert len(Trainer(convolutional()).fit(X, Y, epochs=2, verbose=0).history["loss"]) == 2
    with pytest.raises(NativeUnavailableError):
        library.load()
    plan = ExecutionPlan(kernels="fast")
    assert len(Trainer(convolutional(), execution=plan).fit(X, Y, verbose=0).history["loss"]) == 1


def test_a_library_of_something_else_is_not_used(fresh_library, monkeypatch) -> None:
    other = ctypes.util.find_library("m") or pytest.skip("there is no libm to load")
    monkeypatch.setattr(conv_build, "build", lambda **_: other)
    with pytest.raises(NativeUnavailableError, match="cannot load libm"):
        library.load()


@pytest.mark.parametrize("content", [b"\x7fELF", b"", b"no library"])
def test_a_cached_library_that_cannot_be_loaded_is_not_used(
    builds, fresh_library, no_writing, monkeypatch, content
) -> None:
    compile_nothing = conv_build._compile

    def compile_nonsense(*arguments):
        found = compile_nothing(*arguments)
        found.write_bytes(content)
        return found

    monkeypatch.setattr(conv_build, "_compile", compile_nonsense)
    conv_build.build()
    no_writing()
    assert library.is_built()
    assert not library.is_available()
    with pytest.raises(NativeUnavailableError, match="--force"):
        library.load()
    assert accelerate(convolutional(), verbose=0).predict(X, verbose=0).shape == (16, 2)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, None])
def test_a_manifest_that_says_nothing_is_none_and_a_checkout_has_none(monkeypatch, tmp_path, text):
    assert not library.bundled_library()
    monkeypatch.setattr(native_cache, "_DIRECTORY", tmp_path)
    (tmp_path / "liboverlap_conv.so").write_bytes(b"")
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    assert bundled_library() is None


def test_one_for_another_tensorflow_is_as_good_as_none(monkeypatch, tmp_path):
    (tmp_path / "built.so").write_bytes(b"library")
    native_cache.bundle(tmp_path / "built.so", tmp_path / "prebuilt")
    monkeypatch.setattr(native_cache, "_DIRECTORY", tmp_path / "prebuilt")
    found = bundled_library()
    assert found is not None
    assert found.read_bytes() == b"library"
    manifest = tmp_path / "prebuilt" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"tensorflow": "1.0"}))
    assert bundled_library() is None
