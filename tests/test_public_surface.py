"""The public names: there, documented, typed, and no heavier to import than they must be."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import overlap_train
from overlap_train import errors

PUBLIC = [getattr(overlap_train, name) for name in overlap_train.__all__]
CALLABLES = [value for value in PUBLIC if inspect.isclass(value) or inspect.isfunction(value)]
MODULES = [module.name for module in pkgutil.walk_packages(overlap_train.__path__, "overlap_train.")]


def methods(kind):
    own = vars(kind).items()
    return [(name, value) for name, value in own if inspect.isfunction(value) and not name.startswith("_")]


# `cli` and `models` hold modules alone.
SHOWN = {name for name in MODULES if name.count(".") == 1 and "._" not in name}
SHOWN -= {"overlap_train.cli", "overlap_train.models"}


@pytest.mark.parametrize("name", ["overlap_train", *sorted(SHOWN)])
def test_completion_shows_public_names_only(name):
    module = importlib.import_module(name)
    shown = {each for each in dir(module) if not (each.startswith("__") and each.endswith("__"))}
    assert shown == set(module.__all__) - {"__version__"}


@pytest.mark.parametrize("value", CALLABLES, ids=lambda value: value.__name__)
def test_public_classes_are_documented_and_typed(value):
    assert inspect.getdoc(value)
    for name, method in methods(value):
        assert inspect.getdoc(method), f"{value.__name__}.{name} has no docstring"
        signature = inspect.signature(method)
        assert signature.return_annotation is not signature.empty, f"{name} does not say what it returns"
        for parameter in list(signature.parameters.values())[1:]:
            assert parameter.annotation is not parameter.empty, f"{name}({parameter.name}) has no type"


def test_fit_and_evaluate_take_the_arguments_of_keras_with_the_same_defaults():
    import keras

    for name in ("fit", "evaluate"):
        theirs = inspect.signature(getattr(keras.Model, name)).parameters
        ours = inspect.signature(getattr(overlap_train.Trainer, name)).parameters
        shared = [p for p in theirs if p != "kwargs"]
        assert list(ours)[: len(shared)] == shared
        for parameter in shared:
            assert ours[parameter].default == theirs[parameter].default, parameter


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_in_the_tree_and_in_its_drawing(name):
    error = getattr(errors, name)
    assert issubclass(error, errors.OverlapTrainError)
    assert name in errors.__doc__
    assert error.__doc__


@pytest.mark.parametrize("module", MODULES)
def test_what_a_module_exports_it_has(module):
    module = importlib.import_module(module)
    assert module.__doc__
    assert all(hasattr(module, name) for name in getattr(module, "__all__", ()))


def test_an_import_starts_no_thread_traces_nothing_and_leaves_to_fit_what_only_fit_needs():
    code = (
        "import sys, threading; before = threading.active_count(); import overlap_train; import keras; "
        "others = set(sys.modules); from overlap_train import Trainer; "
        "assert threading.active_count() == before, threading.enumerate(); "
        "from tensorflow.python.eager import context; assert context.context()._context_handle is None, "
        "'importing the package initialised the devices'; "
        "loaded = set(sys.modules) - others; foreign = {n for n in loaded if n[:13] != 'overlap_train'}; "
        "late = [f'overlap_train.{n}' for n in ('_fit.run', '_validation', '_data', '_callbacks', 'conv')]; "
        "assert not foreign, foreign; assert not loaded & set(late), loaded & set(late)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=150)
