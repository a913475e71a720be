"""Shared by the tests of validation."""

import weakref

import pytest

from overlap_train._snapshot import Snapshot
from tests import networks
from tests.validation.test_evaluation import built, evaluator_of


@pytest.fixture(scope="module")
def evaluated():
    """Returns a trained model with its state, the batches of arrays, and what evaluates it on them."""
    model = built(networks.sequential)
    return model, *evaluator_of(model)


class Snapshots:
    """Counts the snapshots that are alive, and how many were at once."""

    def __init__(self) -> None:
        self.live, self.most = weakref.WeakSet(), 0

    def add(self, snapshot) -> None:
        self.live.add(snapshot)
        self.most = max(self.most, len(self.live))


@pytest.fixture
def snapshots(monkeypatch):
    counted, created = Snapshots(), Snapshot.__init__

    def tracked(self, *args, **kwargs):
        created(self, *args, **kwargs)
        counted.add(self)

    monkeypatch.setattr(Snapshot, "__init__", tracked)
    return counted
