"""A refusal is told from other errors, and from one of somebody else."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

from overlap_train import Trainer
from overlap_train._support.fit_arguments import Refusing, is_refusal_of
from tests.networks import arrays
from tests.pools import sequential


@pytest.mark.parametrize("kind", [TypeError, ValueError, RuntimeError])
def test_bad_arguments_are_refused_and_nothing_else_is(kind):
    one, other = object(), object()
    with pytest.raises(kind) as caught, Refusing(one):
        raise kind
    assert is_refusal_of(one, caught.value) == (kind is not RuntimeError)
    assert not is_refusal_of(other, caught.value)
    assert not is_refusal_of(one, ValueError())


def test_a_refusal_can_be_sent_to_another_process_whatever_owner_it_has():
    owner = threading.Lock()
    with pytest.raises(ValueError) as caught, Refusing(owner):
        raise ValueError("epochs must be at least 0")
    for sent in (pickle.loads(pickle.dumps(caught.value)), copy.deepcopy(caught.value)):
        assert str(sent) == "epochs must be at least 0"
        assert type(sent) is ValueError


class Sealed(ValueError):
    def __setattr__(self, name, value):
        if name.startswith("_overlap"):
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_an_error_that_takes_no_mark_is_raised_as_it_is():
    with pytest.raises(Sealed), Refusing(object()):
        raise Sealed


def test_what_a_trainer_refuses_can_be_sent_to_another_process():
    x, y = arrays(8)
    trainer = Trainer(sequential())
    for call, arguments in (
        (trainer.fit, {"epochs": -1}),
        (trainer.fit, {"epochs": "two"}),
        (trainer.fit, {"sample_weight": y[:3]}),
        (trainer.evaluate, {"steps": 0}),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call(x, y, **arguments)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
