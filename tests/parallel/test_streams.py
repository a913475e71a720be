"""`split_gpu`: what it asks TensorFlow for, and what it refuses. The cards are made up."""

import pytest
import tensorflow as tf

from overlap_train.parallel import split_gpu


@pytest.fixture
def cards(monkeypatch):
    """Two cards, and what was asked for each."""
    asked = {}
    names = ["card 0", "card 1"]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: names)
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", asked.__setitem__)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", asked.get)
    return asked


def test_two_parts_with_streams_of_different_priority(cards):
    assert split_gpu(2, [3000, 1000], priorities=(-1, 0)) == ("GPU:0", "GPU:1")
    parts = cards["card 0"]
    assert [part.memory_limit for part in parts] == [3000, 1000]
    assert [part.experimental_priority for part in parts] == [-1, 0]


def test_a_second_card_is_counted_after_the_parts_of_the_first(cards):
    assert split_gpu(2, 500) == ("GPU:0", "GPU:1")
    assert split_gpu(3, 500, gpu=1) == ("GPU:2", "GPU:3", "GPU:4")
    assert [part.experimental_priority for part in cards["card 1"]] == [None] * 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"parts": 1}, ValueError, "parts must be at least 2; got 1"),
        ({"memory_mib": 0}, ValueError, "memory_mib must be at least 1; got 0"),
        ({"memory_mib": [100]}, ValueError, "memory_mib has 1 values for 2 parts"),
        ({"priorities": (0,)}, ValueError, "priorities has 1 values for 2 parts"),
        ({"priorities": (0, 1)}, ValueError, "priorities must be at most 0; got 1"),
        ({"priorities": (0, -6)}, ValueError, "priorities must be at least -5; got -6"),
        ({"gpu": 2}, RuntimeError, "there is no GPU number 2: TensorFlow sees 2"),
    ],
)
def test_bad_arguments_are_refused(cards, arguments, error, message):
    with pytest.raises(error, match=message):
        split_gpu(**arguments)
    assert not cards


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    with pytest.raises(RuntimeError, match="TensorFlow sees 0; check CUDA_VISIBLE_DEVICES"):
        split_gpu()


def test_after_tensorflow_has_started_it_says_what_to_do(cards, monkeypatch):
    def started(card, configuration):
        raise RuntimeError("Virtual devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_logical_device_configuration", started)
    with pytest.raises(RuntimeError, match="call split_gpu first, before any tensor is made") as caught:
        split_gpu()
    assert caught.value.__cause__ is not None
