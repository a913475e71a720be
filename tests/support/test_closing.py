"""What has a `close` is closed by its `with` statement."""

from __future__ import annotations

import pytest

from overlap_train._support.closing import Closing


class Resource(Closing):
    """Counts how often it was closed."""

    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


def test_a_block_gives_the_resource_and_closes_it():
    resource = Resource()
    with resource as given:
        assert given is resource
        assert not resource.closed
    assert resource.closed == 1


def test_a_block_that_raises_closes_the_resource_and_raises():
    resource = Resource()
    with pytest.raises(KeyboardInterrupt), resource:
        raise KeyboardInterrupt
    assert resource.closed == 1


def test_what_cannot_be_closed_is_not_made():
    class Endless(Closing):
        pass

    with pytest.raises(TypeError, match="close"):
        Endless()
