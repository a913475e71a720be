"""Shared by all tests: seeds, small data, and a check that no test leaves a thread behind."""

import gc
import os
import re
import shutil
import sys
import tempfile
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests hold validations up inside an operation, by events that training steps set: more operations must be
# able to wait than a machine of two cores has threads by default.
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")
# matplotlib looks for fonts once and keeps what it has found, where that is not a cache of one day.
os.environ.setdefault(
    "MPLCONFIGDIR",
    os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "matplotlib"),
)
# Plans are cached by user; a test must not find those of another day.
CACHE = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="overlap_train-tests-")
# The processes of one run share a build of the convolution: they inherit the first one's directory.
os.environ.setdefault("OVERLAP_TRAIN_CACHE_DIR", CACHE + "/builds")

import pytest

from tests import devices

FEWER_PASSES = "OVERLAP_TRAIN_TESTS_FEWER_PASSES"


def pytest_sessionstart(session):
    """Spares the processes of a default run TensorFlow's passes over functions of fewer than 100 operations.

    Those are the functions of which tf.data makes batches, rewritten for each iterator anew, and what is
    traced around a step: a sixth of the time. Steps and validations are larger. The nightly tests and a run
    in one process have every pass. TensorFlow's threads sleep where they would spin, too: there are more of
    them than cores.
    """
    if hasattr(session.config, "workerinput") and "not nightly" in session.config.option.markexpr:
        os.environ[FEWER_PASSES] = "1"  # for the processes that run cases of their own, too
    if FEWER_PASSES in os.environ:
        import tensorflow as tf

        from tests import interpreters

        tf.config.optimizer.set_experimental_options({"min_graph_nodes": 100})
        interpreters.let_threads_sleep()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what the markers say
def pytest_collection_modifyitems(config, items):
    """Leaves some of the cases of a test to the nightly run, as its marker `by_default` says."""
    groups = {}
    for item in items:
        if item.get_closest_marker("by_default") is not None:
            groups.setdefault((item.path, item.originalname), []).append(item)
    whole = not any("::" in argument for argument in config.args)
    for cases in groups.values():
        for case in left_to_the_night(cases, whole=whole):
            case.add_marker(pytest.mark.nightly)


def left_to_the_night(cases, *, whole=True):
    """Return which of the cases of a test, perhaps the whole of them, the default run leaves out.

    With `each_value=True` those remain with which each value of each parameter is tried once.
    """
    marker = cases[0].get_closest_marker("by_default")
    if marker.kwargs.get("each_value"):
        tried = set()
        return [case for case in cases if not _tries_more(case.callspec.params, tried)]
    unknown = set(marker.args) - {case.callspec.id for case in cases}
    if unknown and whole:
        raise pytest.UsageError(f"{cases[0].originalname} has no cases {sorted(unknown)}")
    return [case for case in cases if case.callspec.id not in marker.args]


def _tries_more(params, tried):
    """Note the values of a case; return whether one of them has not been tried."""
    values = {(name, id(value)) for name, value in params.items()}
    if values <= tried:
        return False
    tried |= values
    return True


def pytest_collection_finish():
    """Spares the searches for garbage a million objects of TensorFlow's, which are imported by now.

    And makes them rarer: tracing makes many objects, and what has to be found a test looks for itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure():
    shutil.rmtree(CACHE, ignore_errors=True)


def pytest_runtest_setup(item):
    """Skips on a GPU, and where operations have to repeat, what holds on a CPU alone."""
    marker = item.get_closest_marker("cpu_only")
    if marker is not None and (
        devices.sees_gpu() or item.config.pluginmanager.has_plugin("tests.deterministic")
    ):
        pytest.skip(f"holds on a CPU: {marker.args[0]}")
    if hasattr(item.module, "gc"):  # to search what is there, and release what was traced, takes a minute
        gc.freeze()


def pytest_runtest_teardown():
    pools = sys.modules.get("tests.pools")  # imports Keras, which not every process needs
    if pools is not None:
        pools.take_back()


@pytest.fixture(autouse=True)
def signals_are_heeded_late(monkeypatch):
    """Lets a busy machine heed a signal late: SIGTERM would end the process of the tests."""
    interrupts = sys.modules.get("overlap_train._fit.interrupts")
    if interrupts is not None:
        monkeypatch.setattr(interrupts, "_PATIENCE_S", 120.0)


@pytest.fixture(autouse=True)
def no_thread_of_ours_is_left():
    """Fails a test after which a validation worker or a sampler still runs."""
    before = set(threading.enumerate())
    yield
    ours = ("validation", "sampler", "overlap")
    left = [t.name for t in threading.enumerate() if t not in before and t.name.startswith(ours)]
    for thread in threading.enumerate():
        if thread.name in left:
            thread.join(timeout=5)
            if not thread.is_alive():
                left.remove(thread.name)
    assert not left, f"threads left behind: {left}"


@pytest.fixture
def steps_may_wait(monkeypatch):
    """Lets a test hold steps up by Python inside them, for which they would be validated in step."""
    from overlap_train._inspection import effects

    monkeypatch.setattr(effects, "_KEPT", re.compile(f"{effects._KEPT.pattern}|EagerPyFunc"))
