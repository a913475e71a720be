"""Names are loaded late, and what is missing is named with what to install or set."""

import sys
import types

import keras
import pytest

from overlap_train import Trainer, accelerate, install, routed
from overlap_train._support.imports import import_extra, lazy_names, require_tensorflow
from overlap_train.scheduling import MultiModelScheduler
from tests.pools import sequential

TAKERS = {
    "Trainer": lambda: Trainer(sequential()),
    "routed": lambda: routed().__enter__(),
    "install": install,
    "accelerate": lambda: accelerate(sequential()),
    "MultiModelScheduler": lambda: MultiModelScheduler({"net": sequential()}),
}


@pytest.mark.parametrize("name", TAKERS)
def test_another_backend_is_refused_by_name(name, monkeypatch):
    model = sequential()
    require_tensorflow()
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"the backend 'jax'.*set KERAS_BACKEND=tensorflow before"):
        TAKERS[name]()
    assert model.optimizer.iterations == 0


def test_a_missing_module_is_told_with_its_package():
    assert import_extra("json.decoder", purpose="this").__name__ == "json.decoder"
    for package in ("nosuch", "no-such"):
        with pytest.raises(ModuleNotFoundError, match=f"it needs {package}, .*: pip install {package}$"):
            import_extra("nosuch.part", purpose="it", package=package)


def test_a_module_that_lacks_another_says_which(tmp_path, monkeypatch):
    (tmp_path / "halfthere.py").write_text("import nosuch")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nosuch'$"):
        import_extra("halfthere", purpose="it")


@pytest.fixture
def package(monkeypatch):
    """Returns a package with a module that counts how often a name is read from it."""

    class Home(types.ModuleType):
        reads = 0

        @property
        def thing(self):
            Home.reads += 1
            return "the thing"

    module, home = types.ModuleType("made_up"), Home("made_up.home")
    monkeypatch.setitem(sys.modules, "made_up", module)
    monkeypatch.setitem(sys.modules, "made_up.home", home)
    module.__all__ = ["missing", "thing"]
    module.__getattr__, module.__dir__ = lazy_names("made_up", {"thing": "home", "missing": "nowhere"})
    return module, Home


def test_a_name_is_loaded_when_it_is_first_used(package):
    module, home = package
    assert {"thing", "missing", "__name__"} <= set(dir(module)), "all are listed before any is loaded"
    with pytest.raises(AttributeError, match="module 'made_up' has no attribute 'other'"):
        module.other  # noqa: B018
    assert (home.reads, "thing" in vars(module)) == (0, False)
    assert [module.thing for _ in range(3)] == ["the thing"] * 3
    assert home.reads == 1
