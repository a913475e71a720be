"""What an extra brings is asked for by a command that installs it wherever this package came from."""

from __future__ import annotations

import sys

import pytest

from overlap_train._support.imports import import_extra
from overlap_train.errors import DataUnavailableError
from overlap_train.models import mnist_data as mnist
from overlap_train.monitoring import AccountWriter, save_timeline


def hide(monkeypatch, package):
    """Makes a package look as if it were not installed, whatever of it was imported before."""

    class Hidden:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Hidden, *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)


def test_a_module_that_is_there_is_returned():
    assert import_extra("json.decoder", purpose="this").__name__ == "json.decoder"


@pytest.mark.parametrize("package", ["", "no-such"])
def test_a_missing_module_is_told_with_its_package(package):
    name = package or "nosuch"
    with pytest.raises(ModuleNotFoundError, match=f"it needs {name}, .*: pip install {name}$"):
        import_extra("nosuch.part", purpose="it", package=package)


def test_a_module_that_lacks_another_says_which(tmp_path, monkeypatch):
    (tmp_path / "halfthere.py").write_text("import nosuch")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nosuch'$"):
        import_extra("halfthere", purpose="it")


def test_a_picture_without_matplotlib(monkeypatch, tmp_path):
    hide(monkeypatch, "matplotlib")
    with pytest.raises(ModuleNotFoundError, match=r"save_timeline needs matplotlib.*pip install matplotlib"):
        save_timeline(tmp_path / "timeline.png", [])


def test_scalars_without_tensorboard(monkeypatch, tmp_path):
    hide(monkeypatch, "tensorboard")
    with pytest.raises(ModuleNotFoundError, match=r"AccountWriter needs.*pip install tensorboard"):
        AccountWriter(tmp_path)


def test_digits_without_scikit_learn_are_data_that_cannot_be_had(monkeypatch):
    hide(monkeypatch, "sklearn")
    with pytest.raises(DataUnavailableError, match=r"no network.*pip install scikit-learn"):
        mnist._embedded_digits("no network")
