"""Calls of Keras's methods go to whoever has routed them, on his thread, and to Keras after that."""

from concurrent.futures import ThreadPoolExecutor

import keras
import pytest

from overlap_train._keras import models as keras_models
from overlap_train._keras.callers import entered, is_within
from overlap_train._keras.routes import Through, add_handler, remove_handler, suspended


class Own(keras.Sequential):
    """Its methods ask whether they are known to run."""

    def fit(self, *arguments, **options):
        return is_within(self, "fit"), is_within(self, "evaluate")


@pytest.fixture
def model():
    """Returns a model that is not compiled: Keras's own methods raise ValueError."""
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


@pytest.fixture(autouse=True)
def keras_is_left_as_it_was():
    cells = {name: keras_models.method_cell(name).cell_contents for name in ("fit", "evaluate")}
    yield
    for name, inner in cells.items():
        assert keras_models.method_cell(name).cell_contents is inner


def test_what_the_target_raises_keeps_its_cause(model):
    def fails():
        raise KeyError("mine") from ZeroDivisionError("why")

    with pytest.raises(KeyError, match="mine") as raised, Through(model, fails):
        model.fit()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_who_is_called_by_a_method_of_the_models_own_knows_it():
    model = Own([keras.Input((2,)), keras.layers.Dense(1)])
    assert not is_within(model, "fit")
    assert model.fit() == (True, False)
    with entered(model, "evaluate"):
        assert is_within(model, "evaluate")
        assert not is_within(model, "fit")
    assert not is_within(model, "evaluate")


class Handles:
    """Notes and answers calls; is removed at its end, if it is not yet."""

    def __init__(self, *, everywhere=False):
        self.calls, self._options = [], {"everywhere": everywhere}
        add_handler(self, **self._options)

    def __call__(self, original, model, name, *arguments, **options):
        self.calls.append((model, name, arguments, options))
        return "handled"

    def remove(self):
        remove_handler(self, **self._options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def on_a_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


def test_a_handler_is_removed_on_another_thread(model):
    with Handles() as outer:
        inner = Handles()
        on_a_thread(inner.remove)
        model.fit(1)
    assert (len(outer.calls), len(inner.calls)) == (1, 0)


def test_keras_does_what_is_asked_of_it_while_routing_is_suspended_and_inside_its_fit(model):
    with Handles() as handler:
        with suspended(), pytest.raises(ValueError, match="compile"):
            model.fit(None)
        with pytest.raises(ValueError, match="compile"):
            model.evaluate(None, _use_cached_eval_dataset=False)
        assert handler.calls == []
        assert model.fit() == "handled"
