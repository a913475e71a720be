"""Shared by the tests of validation."""

from __future__ import annotations

import pytest

from tests import networks
from tests.validation.test_evaluation import built, evaluator_of


@pytest.fixture(scope="module")
def evaluated():
    """Returns a trained model with its state, the batches of arrays, and what evaluates it on them."""
    model = built(networks.sequential)
    return model, *evaluator_of(model)
