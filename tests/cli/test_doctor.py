"""`overlap-train doctor`: each thing that may be wrong is found, and told with its remedy."""

import sys

import keras
import pynvml
import pytest
import tensorflow as tf
from packaging.requirements import Requirement

from overlap_train.cli import doctor
from overlap_train.cli.main import main
from overlap_train.conv import build, library
from overlap_train.errors import NativeUnavailableError


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_the_whole_report_has_all_sections(told, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    sections = told("doctor", statuses=(0, 1))
    assert list(sections) == ["versions", "devices", "compiled convolution", "threads", "caches"]
    assert sections["versions"]["TensorFlow"]["value"] == tf.__version__
    assert sections["versions"]["Keras"]["value"] == keras.__version__
    assert sections["threads"]["OMP_NUM_THREADS"]["value"] == "3"
    assert sections["threads"]["cores"]["value"] >= 1


def test_a_version_that_does_not_fit_is_told_with_the_line_that_installs_one(monkeypatch):
    monkeypatch.setattr(doctor, "_requirements", lambda: [Requirement("tensorflow<3,>=2.99")])
    finding = by_name(doctor._versions())["TensorFlow"]
    assert finding.state == "mend"
    assert f"{tf.__version__}, where" in finding.text
    assert finding.remedy == 'pip install "tensorflow<3,>=2.99"'
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    finding = by_name(doctor._versions())["Keras backend"]
    assert finding.state == "mend"
    assert "KERAS_BACKEND=tensorflow" in finding.remedy


@pytest.mark.parametrize("told_by", ["environment", "file", None])
def test_a_keras_that_looks_for_another_backend_is_told_which_one_to_take(told_by, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "keras", None)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if told_by == "environment":
        monkeypatch.setenv("KERAS_BACKEND", "jax")
    elif told_by == "file":
        (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    remedy = by_name(doctor._versions())["Keras"].remedy
    assert remedy.startswith("pip install" if told_by is None else "export KERAS_BACKEND=tensorflow")


def test_without_tensorflow_the_rest_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "cannot be imported" in said
    assert 'pip install "tensorflow' in said
    assert "caches" in said
    assert "devices" not in said


@pytest.fixture
def driver(monkeypatch):
    """A driver with two GPUs, of which TensorFlow sees none."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])


@pytest.mark.parametrize(
    ("visible", "state", "text", "remedy"),
    [
        (None, "mend", "driver has 2", 'pip install "tensorflow[and-cuda]"'),
        ("-1", "note", "", "unset CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_that_tensorflow_does_not_use_is_told(driver, monkeypatch, visible, state, text, remedy):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    finding = by_name(doctor._devices())["GPU"]
    assert (finding.state, finding.remedy) == (state, remedy)
    assert text in finding.text


def test_a_machine_without_gpus_is_in_order_and_gpus_are_named(monkeypatch):
    def nothing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    found = []
    monkeypatch.setattr(pynvml, "nvmlInit", nothing)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: found)
    assert by_name(doctor._devices())["GPU"].text == "none"
    found.append(tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU"))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: {"device_name": "H100"})
    assert by_name(doctor._devices())["GPU:0"].value == "H100"


@pytest.mark.parametrize(
    ("disabled", "refusal", "text", "remedy"),
    [
        ("0", None, "", "overlap-train build"),
        ("0", "needs a C++17 compiler; apt install g++", "apt install g++", None),
        ("1", None, "", "unset OVERLAP_TRAIN_CONV_DISABLE"),
    ],
    ids=["not compiled yet", "no compiler", "switched off"],
)
def test_a_convolution_that_is_not_there_is_a_note(monkeypatch, disabled, refusal, text, remedy):
    def find_toolchain():
        if refusal is not None:
            raise NativeUnavailableError(refusal)

    monkeypatch.setenv("OVERLAP_TRAIN_CONV_DISABLE", disabled)
    monkeypatch.setattr(library, "is_built", lambda: False)
    monkeypatch.setattr(build, "find_toolchain", find_toolchain)
    (finding,) = doctor._convolution()
    assert finding.state == "note"
    assert text in finding.text
    assert remedy is None or finding.remedy == remedy


def test_a_cache_that_cannot_be_made_is_told(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("OVERLAP_TRAIN_CACHE_DIR", raising=False)
    for name, variable in (("measurements", "XDG_CACHE_HOME"), ("compiled code", "OVERLAP_TRAIN_CACHE_DIR")):
        finding = by_name(doctor._caches())[name]
        assert finding.state == "mend"
        assert variable in finding.remedy
    monkeypatch.setattr(doctor, "cache_home", lambda: None)
    monkeypatch.setattr("overlap_train._support.caches.cache_home", lambda: None)
    assert [finding.state for finding in doctor._caches()] == ["mend", "mend"]
