"""What has a `close` is closed by its `with` statement."""

from __future__ import annotations

import pytest

from overlap_train._support.closing import Closing


class Resource(Closing):
    """Counts how often it was closed."""

    def __init__(self):
        self.closed = self.closed_now = 0

    def close(self):
        self.closed += 1

    def close_now(self):
        self.closed_now += 1


def test_a_block_gives_the_resource_and_closes_it():
    resource = Resource()
    with resource as given:
        assert given is resource
        assert not resource.closed
    assert resource.closed == 1


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_block_that_raises_closes_the_resource_and_raises(error):
    resource = Resource()
    with pytest.raises(error), resource:
        raise error
    now = error is KeyboardInterrupt  # which waits for nothing
    assert (resource.closed, resource.closed_now) == (not now, now)


def test_what_cannot_be_closed_is_not_made():
    class Endless(Closing):
        pass

    with pytest.raises(TypeError, match="close"):
        Endless()
