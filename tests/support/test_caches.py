"""Where caches lie, and under which conditions a measured time still counts."""

import builtins
import io
import platform
from pathlib import Path

import pytest

from overlap_train._support import caches
from overlap_train._support.caches import conditions, processor_name


@pytest.mark.parametrize(
    ("xdg", "home", "expected"),
    [
        ("/xdg", "/home/u", "/xdg/overlap_train"),
        (None, "/home/u", "/home/u/.cache/overlap_train"),
        ("relative", "/home/u", "/home/u/.cache/overlap_train"),
        (None, "relative", None),
        (None, "", None),
    ],
)
def test_the_cache_lies_at_an_absolute_place_or_nowhere(monkeypatch, xdg, home, expected):
    for name, value in (("XDG_CACHE_HOME", xdg), ("HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    found = caches.cache_home()
    assert (None if found is None else str(found)) == expected
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert caches.cache_home() is None, "of a user whom the system does not know"


def test_each_cache_has_a_place_of_its_own(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("OVERLAP_TRAIN_CACHE_DIR", raising=False)
    kinds = (caches.convolution_times, caches.copy_times, caches.convolution_builds)
    assert {kind().parent for kind in kinds} == {Path("/xdg/overlap_train")}
    assert len({kind() for kind in kinds}) == 3
    monkeypatch.setenv("OVERLAP_TRAIN_CACHE_DIR", "/builds")
    assert caches.convolution_builds() == Path("/builds/conv")


_ZEN = "processor\t: 0\nmodel name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu avx512f\n\n"


def show(monkeypatch, text):
    real = builtins.open

    def opened(path, *arguments, **options):
        return io.StringIO(text) if path == "/proc/cpuinfo" else real(path, *arguments, **options)

    monkeypatch.setattr(builtins, "open", opened)
    caches._processor.cache_clear()


@pytest.fixture(autouse=True)
def _read_anew():
    yield
    caches._processor.cache_clear()


def test_what_decides_which_code_runs_counts_and_nothing_else(monkeypatch):
    before = conditions()
    monkeypatch.setenv("PWD", "another")
    assert conditions() == before
    for name in ("TF_ENABLE_ONEDNN_OPTS", "OMP_NUM_THREADS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "another")
            assert conditions() != before


def test_processors_of_one_name_are_told_apart(monkeypatch):
    show(monkeypatch, _ZEN)
    before = conditions()
    show(monkeypatch, _ZEN.replace("17", "1"))
    assert conditions() != before
    show(monkeypatch, _ZEN + _ZEN.replace("17", "1"))
    assert conditions() == before


def test_a_system_without_cpuinfo_has_the_name_that_python_knows(monkeypatch):
    show(monkeypatch, _ZEN)
    assert processor_name() == "AMD EPYC"
    show(monkeypatch, "")
    monkeypatch.setattr(caches.platform, "processor", lambda: "arm")
    assert processor_name() == platform.processor() == "arm"
