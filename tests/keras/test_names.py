"""Keras's private names: what a Keras that lacks one says."""

from __future__ import annotations

import importlib.util

import keras
import pytest

from overlap_train._keras import names


def load_again():
    """Looks the names up once more, as the first import does."""
    spec = importlib.util.spec_from_file_location("names_again", names.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NONE = compile("", "", "exec")


def without(kind, *names):
    """Returns a class like another, of whose attributes and methods some are gone."""
    kept = {name: value for owner in reversed(kind.__mro__[:-1]) for name, value in vars(owner).items()}
    own = {name: value for name, value in kept.items() if name not in names and not name.startswith("__")}
    return type(kind.__name__, (), {**own, "__module__": kind.__module__})


def test_what_this_keras_has_is_found():
    again = load_again()
    assert {name: getattr(again, name) for name in names.__all__} == {
        name: getattr(names, name) for name in names.__all__
    }
    assert None not in [getattr(names, name) for name in names.__all__]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("trainers.compile_utils.MetricsList", "keras.src.trainers.compile_utils.MetricsList"),
        ("losses.loss", "keras.src.losses.loss"),
        ("models.functional.Functional", "keras.src.models.functional.Functional"),
        (
            f"backend.tensorflow.trainer.{names.KerasTrainer.__name__}",
            "backend.tensorflow.trainer.TensorFlowTrainer",
        ),
    ],
)
def test_a_name_that_is_gone_is_told_with_the_versions_that_have_it(monkeypatch, place, told):
    monkeypatch.delattr(f"keras.src.{place}")
    with pytest.raises(ImportError) as raised:
        load_again()
    message = str(raised.value)
    assert told in message
    assert f"does not work with Keras {keras.__version__}" in message
    assert "pip install 'keras<" in message or "pip install 'keras>=" in message


@pytest.mark.parametrize(
    ("owner", "kind", "gone"),
    [
        ("layers", "Layer", "_flatten_layers"),  # a method
        ("callbacks", "TensorBoard", "_should_trace"),  # set by `__init__` and by methods
        ("optimizers", "Adam", "_momentums"),  # set by `build`
    ],
)
def test_an_attribute_that_is_gone_is_told(monkeypatch, owner, kind, gone):
    found = getattr(getattr(keras, owner), kind)
    users = [name for name in dir(found) if gone in getattr(getattr(found, name), "__code__", NONE).co_names]
    for place in ("keras", f"keras.{owner}"):
        if hasattr(keras, kind) or place != "keras":
            monkeypatch.setattr(f"{place}.{kind}", without(found, gone, *users))
    with pytest.raises(ImportError, match=rf"has no .*{kind}\.{gone}"):
        load_again()
