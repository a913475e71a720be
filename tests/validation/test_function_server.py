"""What a process makes of what it is sent, without a process."""

from __future__ import annotations

import dataclasses
import pickle
import queue

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._validation import function_server
from overlap_train._validation.attributes import Attributes
from overlap_train._validation.function_server import READY, Request, Served, Settings, serve_function
from tests.networks import CLASSES, FEATURES
from tests.validation.calling import mean_output, simple


def made():
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])


def served(model, **changes):
    everything = Served(
        function=mean_output,
        clone=made,
        path=None,
        x_spec=tf.TensorSpec([None, FEATURES]),
        custom={},
        paths=[variable.path for variable in model.variables],
        compilation=model.get_compile_config(),
        attributes=Attributes.of(model).portable()[0],
        digest=None,
    )
    return dataclasses.replace(everything, **changes)


def request(model):
    values = ([v.numpy() for v in variables] for variables in (model.variables, model.optimizer.variables))
    return Request(*values, Attributes.of(model).portable()[0])


class Link:
    """Stands for a pipe whose other end has sent one request, and hears one answer."""

    def __init__(self, sent):
        self.sent, self.heard = sent, queue.SimpleQueue()

    def send(self, answer):
        self.heard.put(answer)
        if answer != READY:
            raise Done


class Done(BaseException):
    pass


@pytest.fixture
def ask(monkeypatch):
    """Returns a function that serves one request on this thread and returns the answer."""
    monkeypatch.setattr(function_server.signal, "signal", lambda *arguments: None)
    monkeypatch.setattr(function_server, "_read", lambda link, requests: requests.put(link.sent))

    def answer(model, **changes):
        link = Link(request(model))
        with pytest.raises(Done):
            serve_function(link, pickle.dumps((Settings.here({}), served(model, **changes))))
        assert link.heard.get() == READY
        return link.heard.get()

    return answer


def test_a_request_is_answered_with_the_values_of_its_weights(ask):
    model = simple()
    error, _, metrics, changed = ask(model)
    assert (error, list(changed)) == (None, [])
    np.testing.assert_allclose(metrics[""], mean_output(model), rtol=1e-5)


def test_a_clone_is_compiled_and_named_as_the_trained_model(ask):
    model = simple()
    model.optimizer.iterations.assign(7)
    _, _, metrics, _ = ask(model, function=looks)
    assert metrics == {"iterations": 7.0, "named": 2.0}


def looks(model):
    return {
        "iterations": int(model.optimizer.iterations),
        "named": sum(v.path.startswith("sequential") for v in model.variables),
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"digest": "another"}, "computes something else"),
        ({"paths": ["a"]}, "has 2 variables, not 1"),
        ({"attributes": pickle.dumps((("Sequential",), [{}], ((), ())))}, "consists of"),
        ({"clone": dict}, "clone must return a Keras model; it returned a dict"),
    ],
    ids=["computation", "variables", "layers", "no model"],
)
def test_what_is_no_copy_is_answered_with_the_reason(ask, changes, reason):
    error, text, metrics, _ = ask(simple(), **changes)
    assert isinstance(error, Exception)
    assert reason in f"{error} {text}"
    assert metrics == {}
