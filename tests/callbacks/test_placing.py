"""Copies of what callbacks keep are put back where they were, or not at all."""

from __future__ import annotations

import collections

import keras
import numpy as np
import pytest

from overlap_train._callbacks.generators import GeneratorValue
from overlap_train._callbacks.objects import NotPutBackError, attributes_of
from overlap_train._callbacks.placing import put_back, require_place
from overlap_train._callbacks.values import copied


class Box:
    def __init__(self, content):
        self.content = content


def test_what_stands_in_a_live_container_is_changed_itself():
    live = [np.random.default_rng(1), Box(1)]
    kept = copied([np.random.default_rng(2), Box(2)], look_into=attributes_of)
    assert isinstance(kept[0], GeneratorValue)
    new = put_back(live, kept, in_place=True)
    assert new is live
    assert live[1].content == 2
    assert live[0].random() == np.random.default_rng(2).random()


def test_nothing_live_is_changed_where_it_may_be_another_s():
    live = [Box(1)]
    kept = copied([Box(2)], look_into=attributes_of)
    new = put_back(live, kept, in_place=False, classes=lambda name: Box)
    assert (live[0].content, new[0].content) == (1, 2)


def test_a_deque_of_another_length_is_a_new_one():
    live = collections.deque([1], maxlen=2)
    new = put_back(live, collections.deque([1, 2, 3], maxlen=5), in_place=True)
    assert (new is live, new.maxlen) == (False, 5)


def test_a_place_is_looked_for_before_anything_is_put_back():
    kept = copied(Box([keras.Variable([1.0])]), look_into=attributes_of)
    with pytest.raises(NotPutBackError, match="is not found"):
        require_place(None, kept)
    require_place(Box([keras.Variable([2.0])]), kept)
    with pytest.raises(ValueError, match="it was a variable"):
        require_place(Box([3]), kept)
    with pytest.raises(ValueError, match=r"one of \(2,\)"):
        require_place(Box([keras.Variable([1.0, 2.0])]), kept)
