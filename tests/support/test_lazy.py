"""Names of a package are loaded when they are first used, and then stay."""

from __future__ import annotations

import sys
import types

import pytest

from overlap_train._support.imports import lazy_names


@pytest.fixture
def package(monkeypatch):
    """Returns a package with a module that counts how often a name is read from it."""

    class Home(types.ModuleType):
        reads = 0

        @property
        def thing(self):
            Home.reads += 1
            return "the thing"

    made, home = types.ModuleType("made_up"), Home("made_up.home")
    monkeypatch.setitem(sys.modules, "made_up", made)
    monkeypatch.setitem(sys.modules, "made_up.home", home)
    made.__getattr__, made.__dir__ = lazy_names("made_up", {"thing": "home", "missing": "nowhere"})
    return made, Home


def test_a_name_is_loaded_when_it_is_first_used(package):
    made, home = package
    assert (home.reads, "thing" in vars(made)) == (0, False)
    assert [made.thing for _ in range(3)] == ["the thing"] * 3
    assert home.reads == 1


def test_all_names_are_listed_before_any_is_loaded(package):
    made, home = package
    assert {"thing", "missing", "__name__"} <= set(dir(made))
    assert home.reads == 0


def test_an_unknown_name_is_an_attribute_error(package):
    made, _ = package
    with pytest.raises(AttributeError, match="module 'made_up' has no attribute 'other'"):
        made.other  # noqa: B018


def test_a_home_that_cannot_be_imported_is_told(package):
    with pytest.raises(ModuleNotFoundError, match=r"made_up\.nowhere"):
        package[0].missing  # noqa: B018


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_an_import_that_fails_names_a_backend_that_is_not_tensorflow(package, backend, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    with pytest.raises(ImportError) as raised:
        _ = package[0].missing
    assert ("Keras runs on the backend 'jax'" in str(raised.value)) is (backend == "jax")
    assert ("made_up.nowhere" in str(raised.value)) is (backend == "tensorflow")
