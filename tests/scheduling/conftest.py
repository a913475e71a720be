"""What several files of scheduling tests need."""

import pytest

from overlap_train.scheduling import preparing


@pytest.fixture
def every_layer_is_cut(monkeypatch):
    """Large layers run in pieces whether or not that pays on this machine, which is not measured."""
    monkeypatch.setattr(preparing.ModelBuilder, "_profile_single", lambda *_: None)
    monkeypatch.setattr(preparing, "worth_cutting", lambda whole, *_: {x.name for x in whole.layers})
