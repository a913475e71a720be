"""A text classifier of an embedding and a recurrent layer.

The embedding's gradient touches few rows, and the recurrent layer cannot spread its time steps over cores.
"""

from __future__ import annotations

import keras


def text_lstm(
    *, vocabulary_size: int, sequence_length: int, width: int = 32, num_classes: int = 2
) -> keras.Sequential:
    """Return the network, uncompiled: token ids, int32 `[N, sequence_length]`, to logits.

    Token 0 is padding; it is masked, so that a short text is read to its own end.
    """
    return keras.Sequential(
        [
            keras.Input((sequence_length,), dtype="int32"),
            keras.layers.Embedding(vocabulary_size, width, mask_zero=True),
            keras.layers.LSTM(width),
            keras.layers.Dense(num_classes),
        ],
        name="text_lstm",
    )
