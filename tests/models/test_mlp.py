"""The perceptron of the benchmark has the layers that it was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from overlap_train.models.mlp import mlp


@pytest.mark.parametrize(("hidden", "weights"), [((4,), 5 * 4 + 4 + 4 * 3 + 3), ((), 5 * 3 + 3)])
def test_logits_have_one_column_for_each_class(hidden, weights):
    network = mlp(features=5, hidden=hidden, num_classes=3)
    assert network(np.zeros((3, 5), np.float32)).shape == (3, 3)
    assert network.count_params() == weights
