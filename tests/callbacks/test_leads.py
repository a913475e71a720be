"""Whether what a library holds leads back to the user's code or to the training."""

from __future__ import annotations

import functools
import logging
import types
import weakref

import keras
import numpy as np
import pytest
import tqdm

from overlap_train._callbacks import leads as module
from overlap_train._callbacks.leads import has_own_functions, is_apart, is_still_apart, leads_on

MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def own(*_):
    return MODEL


class Own:
    pass


def holding(thing):
    """Returns a library's object that holds something."""
    bar = tqdm.tqdm(disable=True)
    bar.kept = thing
    return bar


@pytest.mark.parametrize(
    "thing",
    [
        lambda: holding(None),
        lambda: holding({"a": [1, "b"]}),
        lambda: holding(np.zeros(3)),
        lambda: holding(np.array([None, "a"], dtype=object)),
        lambda: holding(len),
        lambda: np.vectorize(len),
        lambda: logging.Logger("quiet"),
        lambda: tqdm.tqdm,
    ],
)
def test_what_holds_only_data_and_its_own_leads_nowhere(thing):
    assert not leads_on(thing())


@pytest.mark.parametrize(
    "thing",
    [
        lambda: holding(MODEL),
        lambda: holding([{"deep": (MODEL,)}]),
        lambda: holding(keras.callbacks.History()),
        lambda: holding(own),
        lambda: holding(Own()),
        lambda: holding(Own),
        lambda: holding(np.array([MODEL], dtype=object)),
        lambda: holding(functools.partial(len, MODEL)),
        lambda: holding([MODEL].append),
        lambda: holding(weakref.ref(MODEL)),
        lambda: holding(types.SimpleNamespace(inner=holding(MODEL))),
        lambda: np.vectorize(own),
        lambda: own,
        lambda: Own(),
    ],
)
def test_what_was_handed_the_users_or_a_part_of_the_training_leads_there(thing):
    assert leads_on(thing())


def test_a_function_of_a_library_leads_where_its_closure_and_defaults_do():
    def bound(inner, default):
        def function(argument=default):
            return inner

        return types.FunctionType(
            function.__code__,
            {"__name__": "numpy.made", "__builtins__": {}},
            "function",
            function.__defaults__,
            function.__closure__,
        )

    assert not leads_on(bound(1, 2))
    assert leads_on(bound(MODEL, 2))
    assert leads_on(bound(1, MODEL))


def test_only_a_librarys_object_can_be_apart():
    bar = holding(1)
    assert is_apart(bar)
    assert not is_apart(holding(MODEL))
    assert not is_apart(Own())
    assert not is_apart({})  # Python's


def test_a_logger_is_looked_at_each_time():
    logger = logging.Logger("asked")
    logger.propagate = False
    assert not leads_on(logger)
    handler = logging.Handler()
    handler.emit = own
    logger.addHandler(handler)
    assert leads_on(logger)


def test_a_loggers_parent_counts_if_it_hands_on():
    parent, child = logging.Logger("parent"), logging.Logger("child")
    child.parent = parent
    parent.addFilter(own)
    assert leads_on(child)
    child.propagate = False
    assert not leads_on(child)


def test_what_was_looked_at_is_known_until_it_is_asked_again():
    bar = holding([])
    assert is_apart(bar)
    bar.kept.append(MODEL)
    assert is_apart(bar)
    assert not is_still_apart(bar)
    assert not is_apart(bar)


def test_what_holds_much_is_not_looked_through_again():
    bar = holding([[] for _ in range(module._MOST_AGAIN + 1)])
    assert is_apart(bar)
    bar.kept.append(MODEL)
    assert is_still_apart(bar)


def test_what_cannot_be_seen_through_counts_as_leading_there():
    assert leads_on(holding([[] for _ in range(module._MOST_OBJECTS + 1)]))


def test_what_is_known_of_an_object_ends_with_it():
    bar = holding(1)
    leads_on(bar)
    key = id(bar)
    assert key in module._known
    del bar
    assert key not in module._known


def test_functions_that_a_callback_was_given_are_seen():
    plain, given = keras.callbacks.EarlyStopping(), keras.callbacks.EarlyStopping()
    plain.set_model(MODEL)
    plain.kind = Own  # a class does nothing before it is called
    given.monitor_op = own
    assert not has_own_functions(plain)
    assert has_own_functions(given)
    assert not has_own_functions(keras.callbacks.ReduceLROnPlateau())
