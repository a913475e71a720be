"""Private names of Keras are used at one place, and a Keras without one is refused."""

import ast
import importlib.util
from pathlib import Path

import keras
import pytest

import overlap_train
from overlap_train._keras import names

ROOT = Path(overlap_train.__file__).parent


DOORS = {
    "keras.src": set(),  # `_keras/names.py` alone imports from it, by the names in its table
    "tensorflow.python": {"_keras/", "_inspection/effects.py", "_inspection/graph.py", "parallel/cluster.py"},
}


@pytest.mark.by_default("tensorflow.python")
@pytest.mark.parametrize("private", DOORS)
def test_no_other_module_imports_private_modules(private):
    through = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith(private) for name in names):
                place = path.relative_to(ROOT)
                through.add("_keras/" if place.parts[0] == "_keras" else place.as_posix())
    assert through == DOORS[private]


def load_again():
    """Looks the names up once more, as the first import does."""
    spec = importlib.util.spec_from_file_location("names_again", names.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NONE = compile("", "", "exec")


def without(kind, *names):
    """Returns a class like another, of whose attributes and methods some are gone."""
    pairs = [pair for owner in reversed(kind.__mro__[:-1]) for pair in vars(owner).items()]
    rest = {name: value for name, value in pairs if name not in names and not name.startswith("__")}
    return type(kind.__name__, (), {**rest, "__module__": kind.__module__})


@pytest.mark.parametrize(
    ("place", "text"),
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
def test_a_name_that_is_gone_is_told_with_the_versions_that_have_it(monkeypatch, place, text):
    monkeypatch.delattr(f"keras.src.{place}")
    with pytest.raises(ImportError) as raised:
        load_again()
    message = str(raised.value)
    assert text in message
    assert f"does not work with Keras {keras.__version__}" in message
    assert "pip check" in message


@pytest.mark.parametrize(
    ("owner", "kind", "gone"),
    [
        ("layers", "Layer", "_flatten_layers"),  # a method
        ("callbacks", "TensorBoard", "_should_trace"),  # set by `__init__` and by methods
        ("optimizers", "Adam", "_momentums"),  # set by `build`
    ],
)
def test_an_attribute_that_is_gone_is_told(monkeypatch, owner, kind, gone):
    cls = getattr(getattr(keras, owner), kind)
    users = [name for name in dir(cls) if gone in getattr(getattr(cls, name), "__code__", NONE).co_names]
    for place in ("keras", f"keras.{owner}"):
        if hasattr(keras, kind) or place != "keras":
            monkeypatch.setattr(f"{place}.{kind}", without(cls, gone, *users))
    with pytest.raises(ImportError, match=rf"has no .*{kind}\.{gone}"):
        load_again()
