"""The network for text of the benchmark: one column for each class, and padding that says nothing."""

from __future__ import annotations

import numpy as np

from overlap_train.models.text_lstm import text_lstm


def test_logits_have_one_column_for_each_class():
    network = text_lstm(vocabulary_size=9, sequence_length=6)
    assert network(np.ones((3, 6), np.int32)).shape == (3, 2)


def test_padding_does_not_change_what_the_text_says():
    network = text_lstm(vocabulary_size=9, sequence_length=6)
    short = np.array([[1, 2, 3, 0, 0, 0]], np.int32)
    unpadded = text_lstm(vocabulary_size=9, sequence_length=3)
    unpadded.set_weights(network.get_weights())
    np.testing.assert_allclose(network(short), unpadded(short[:, :3]), rtol=1e-5, atol=1e-6)
