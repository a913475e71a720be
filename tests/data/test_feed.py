"""What every feed does unless it knows better: passes are made again from their beginning."""

from __future__ import annotations

import pytest
import tensorflow as tf

from overlap_train._data.feed import Feed


class Numbers(Feed):
    """Its passes count from ten times their own number on; an iterator if asked for."""

    num_batches = 3
    rewindable = True

    def __init__(self, spec=None, *, iterators=False):
        super().__init__()
        self.element_spec, self._iterators = spec, iterators

    def new_pass(self):
        self.drawn += 1
        numbers = [10 * self.drawn + number for number in range(self.num_batches)]
        return Draws(numbers) if self._iterators else numbers

    def rewind(self, drawn):
        self.drawn = drawn

    def describe(self):
        return "numbers"


class Draws:
    def __init__(self, numbers):
        self._numbers = iter(numbers)

    def __next__(self):
        return next(self._numbers)

    get_next = __next__


def spec(*shape):
    return tf.TensorSpec(shape)


@pytest.mark.parametrize(
    ("element_spec", "rows"),
    [
        (spec(16, 4), 16),
        ((spec(16, 4), spec(16)), 16),
        ((spec(None, 4), spec(None)), None),
        ({"left": spec(8, 2), "right": spec(8, 3)}, 8),
        (spec(), None),
        (tf.TensorSpec(None), None),
        ((), None),
        (tf.RaggedTensorSpec((16, None)), None),
    ],
)
def test_the_rows_of_a_full_batch_are_known_where_the_spec_tells_them(element_spec, rows):
    assert Numbers(element_spec).full_batch == rows


def test_a_pass_is_opened_again_where_it_stood():
    feed = Numbers()
    passes = [feed.new_pass() for _ in range(3)]
    assert feed.reopen(2, 1) == passes[1]
    assert feed.drawn == 2


def test_an_iterator_is_advanced_to_where_it_stood():
    feed = Numbers(iterators=True)
    for _ in range(2):
        feed.new_pass()
    assert [next(feed.reopen(1, seen)) for seen in (0, 2)] == [10, 12]


def test_an_iterator_that_ends_before_is_an_error():
    feed = Numbers(iterators=True)
    feed.new_pass()
    with pytest.raises(ValueError, match="ended before batch 100"):
        feed.reopen(1, 100)


def test_what_a_feed_does_not_say_is_what_changes_nothing():
    feed, opened = Numbers(), object()
    assert feed.source(opened) is opened
    assert (feed.keeps, feed.full, feed.keep(1 << 30), feed.runs_python) == (False,) * 4
    assert (feed.most_steps(opened), feed.left_out, feed.recall(1, {})) == (None, (), ())
    assert feed.remembered(begun=True, seen=2) == {}
    feed.check({"anything": 1}, begun=True)
    for tells in (feed.prepare, feed.mark, feed.begin_epoch, feed.end_epoch):
        assert tells() is None
    with feed.looked_at():
        assert feed.drawn == 0


@pytest.mark.parametrize("rewindable", [True, False])
def test_what_can_be_rewound_can_be_found_by_another_process(rewindable):
    feed = Numbers()
    feed.rewindable = rewindable
    assert feed.remember(None) is rewindable
