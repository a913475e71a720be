"""A text classifier of an embedding and a recurrent layer.

The embedding's gradient touches few rows, and the recurrent layer cannot spread its time steps over cores.
"""

from __future__ import annotations

import keras

from overlap_train._support.arguments import require_count

__all__ = ["text_lstm"]


def text_lstm(
    *, vocabulary_size: int, sequence_length: int, width: int = 32, num_classes: int = 2
) -> keras.Sequential:
    """Return the network, uncompiled: token ids, int32 `[N, sequence_length]`, to logits.

    Token 0 is padding; it is masked, so that a short text is read to its own end.
    """
    vocabulary_size = require_count("vocabulary_size", vocabulary_size, minimum=1)
    sequence_length = require_count("sequence_length", sequence_length, minimum=1)
    width = require_count("width", width, minimum=1)
    num_classes = require_count("num_classes", num_classes, minimum=1)
    return keras.Sequential(
        [
            keras.Input((sequence_length,), dtype="int32"),
            keras.layers.Embedding(vocabulary_size, width, mask_zero=True),
            keras.layers.LSTM(width),
            keras.layers.Dense(num_classes),
        ],
        name="text_lstm",
    )
