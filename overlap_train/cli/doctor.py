"""`overlap-train doctor`: what is installed and found here, what is missing, and the line that mends it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import os
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

from overlap_train._support.caches import cache_home, processor_name
from overlap_train._support.imports import BACKEND_REMEDY, configured_backend
from overlap_train._support.printing import error_text
from overlap_train._support.version import __version__
from overlap_train.cli.report import Finding, Report, one_line
from overlap_train.errors import NativeUnavailableError

_PACKAGE = "overlap_train"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: none of its own."""
    parser.epilog = "example: overlap-train doctor --json"


def run(options: argparse.Namespace) -> Report:
    """Look at everything that decides how fast a training is here, and change nothing."""
    sections = {"versions": _versions()}
    if _import("tensorflow")[0] is not None and _import("keras")[0] is not None:
        sections |= {"devices": _devices(), "compiled convolution": _convolution(), "threads": _threads()}
    return Report("doctor", {**sections, "caches": _caches()})


def _import(name: str) -> tuple[ModuleType | None, str]:
    """Return a module, or None and what went wrong, whatever that is."""
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # a library built for another machine raises anything
        return None, one_line(error_text(error))


def _versions() -> list[Finding]:
    findings = [Finding("overlap_train", __version__), Finding("Python", platform.python_version())]
    modules = {"TensorFlow": "tensorflow", "Keras": "keras", "NumPy": "numpy"}
    findings += [_version(name, module) for name, module in modules.items()]
    keras, _ = _import("keras")
    if keras is not None:
        backend = keras.config.backend()
        if backend == "tensorflow":
            findings.append(Finding("Keras backend", backend))
        else:
            findings.append(Finding("Keras backend", backend, "", "mend", BACKEND_REMEDY))
    return findings


def _version(name: str, module_name: str) -> Finding:
    """Return the version of a required package, compared with what this package requires."""
    requirement = next((r for r in _requirements() if r.name == module_name), None)
    install = f'pip install "{module_name}{requirement.specifier if requirement is not None else ""}"'
    module, error = _import(module_name)
    if module is None:
        has_other_backend = module_name == "keras" and configured_backend() != "tensorflow"
        remedy = BACKEND_REMEDY if has_other_backend else install
        return Finding(name, None, f"cannot be imported: {error}", "mend", remedy)
    version = str(module.__version__)
    if requirement is not None and not requirement.specifier.contains(version, prereleases=True):
        text = f"{version}, where overlap_train {__version__} needs {requirement.specifier}"
        return Finding(name, version, text, "mend", install)
    return Finding(name, version)


def _requirements() -> list[Any]:
    """Return what this package requires, as `packaging` reads it; nothing if it is not installed."""
    from packaging.requirements import Requirement

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return [Requirement(text) for text in importlib.metadata.requires(_PACKAGE) or ()]
    return []


def _devices() -> list[Finding]:
    import tensorflow as tf

    from overlap_train.options.threads import available_cores

    cores = available_cores()
    cpu = {"name": processor_name(), "cores": cores}
    findings = [Finding("CPU", cpu, f"{cpu['name'] or platform.machine()}, {cores} cores to run on")]
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        details = tf.config.experimental.get_device_details(gpu)
        name = details.get("device_name", gpu.name)
        findings.append(Finding(gpu.name.rpartition("physical_device:")[2], name))
    return findings if gpus else [*findings, _missing_gpu()]


def _missing_gpu() -> Finding:
    """Return what to say where TensorFlow has no GPU: there may be one that it cannot use."""
    count = _driver_gpus()
    if not count:
        return Finding("GPU", None, "none", "note")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        text = f"{count} of the driver's, hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return Finding("GPU", None, text, "note", "unset CUDA_VISIBLE_DEVICES")
    text = f"the driver has {count}, TensorFlow finds none: CUDA's libraries are missing or do not fit"
    return Finding("GPU", None, text, "mend", 'pip install "tensorflow[and-cuda]"')


def _driver_gpus() -> int:
    """Return how many GPUs the driver has; 0 where there is none, or no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    return count


def _convolution() -> list[Finding]:
    """Return whether convolutions are compiled; never compiles them."""
    from overlap_train.conv.build import find_toolchain
    from overlap_train.conv.library import has_cuda, instruction_set, is_built, is_switched_off

    if is_switched_off():
        text = "switched off by OVERLAP_TRAIN_CONV_DISABLE; TensorFlow's convolutions are used"
        return [Finding("library", False, text, "note", "unset OVERLAP_TRAIN_CONV_DISABLE")]
    try:
        if is_built():
            cuda = has_cuda()
            kernels = Finding("CUDA kernels", cuda, "yes" if cuda else "no", "ok" if cuda else "note")
            return [
                Finding("library", True, "there"),
                Finding("instruction set", instruction_set()),
                kernels,
            ]
        find_toolchain()
    except NativeUnavailableError as error:
        remedy = "see what it says above; TensorFlow's convolutions are used meanwhile"
        return [Finding("library", False, one_line(error, 1000), "note", remedy)]
    text = "not compiled yet; TensorFlow's convolutions are used until it is"
    return [Finding("library", False, text, "note", "overlap-train build")]


def _threads() -> list[Finding]:
    import tensorflow as tf

    from overlap_train.options.threads import available_cores, splits_pay, splits_would_pay

    threading = tf.config.threading
    intra = threading.get_intra_op_parallelism_threads()
    inter = threading.get_inter_op_parallelism_threads()
    findings = [
        Finding("cores", available_cores(), f"{available_cores()} of {os.cpu_count()}"),
        Finding("intra-op threads", intra, str(intra or "TensorFlow's default, all cores")),
        Finding("inter-op threads", inter, str(inter or "TensorFlow's default, all cores")),
    ]
    findings += [
        Finding(name, os.environ[name], state="note")
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        if name in os.environ
    ]
    remedy = "overlap_train.configure(), right after a script's imports" if splits_would_pay() else None
    text = f"batches {'can be' if splits_pay() else 'are not'} split over the cores"
    return [*findings, Finding("splitting", splits_pay(), text, "ok" if splits_pay() else "note", remedy)]


def _caches() -> list[Finding]:
    from overlap_train.conv.native_cache import cache_path

    compiled = None
    with contextlib.suppress(NativeUnavailableError):  # without a home directory
        compiled = cache_path()
    return [
        _cache("measurements", cache_home(), "XDG_CACHE_HOME"),
        _cache("compiled code", compiled, "OVERLAP_TRAIN_CACHE_DIR"),
    ]


def _cache(name: str, directory: Path | None, variable: str) -> Finding:
    if directory is None:
        return Finding(name, None, "there is no home directory", "mend", f"export {variable}=DIRECTORY")
    value = {"path": str(directory), "writable": _is_writable(directory)}
    if value["writable"]:
        return Finding(name, value, f"{directory}, writable")
    remedy = f"name another directory in {variable}, or make this one writable"
    return Finding(name, value, f"{directory}, not writable", "mend", remedy)


def _is_writable(directory: Path) -> bool:
    """Whether files can be made in a directory, or the directory itself where it is not there yet."""
    nearest = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
