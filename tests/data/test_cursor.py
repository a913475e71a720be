"""The cursor makes new passes exactly when `keras.Model.fit` makes them, and goes back to where it was."""

import pytest

from overlap_train._data.cursor import Cursor
from tests.data.sources import feed_of, one_pass, rows, train


def shuffled(*, endless=False):
    """Returns rows in five batches, in another order in each pass."""
    data = rows().shuffle(13, seed=4)
    return (data.repeat() if endless else data).batch(3)


def test_steps_per_epoch_goes_on_in_the_middle_of_a_pass():
    other = feed_of(shuffled())
    first, second = one_pass(other), one_pass(other)
    cursor = Cursor(feed_of(shuffled()), 2)
    assert cursor.steps_per_epoch == 2
    assert [train(cursor) for _ in range(2)] == [first[:2], first[2:4]]
    assert train(cursor) == first[4:]
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        cursor.warn(cursor.state())  # when it is delivered
    assert train(cursor) == second[:2]


@pytest.mark.parametrize(
    ("steps_per_epoch", "endless"), [(None, False), (2, False), (3, False), (5, False), (2, True)]
)
@pytest.mark.parametrize("back_to", [1, 2])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_epochs_after_a_restore_use_the_same_batches(steps_per_epoch, endless, back_to):
    cursor = Cursor(feed_of(shuffled(endless=endless), steps=steps_per_epoch), steps_per_epoch)
    assert cursor.feed.rewindable
    states, epochs = [cursor.state()], []
    for _ in range(4):
        epochs.append(train(cursor))
        states.append(cursor.state())
    cursor.restore(states[back_to])
    assert [train(cursor) for _ in range(4 - back_to)] == epochs[back_to:]
    assert cursor.state() == states[-1]


def test_a_restore_that_no_epoch_follows_touches_no_data(monkeypatch):
    feed = feed_of(shuffled())
    cursor = Cursor(feed, 2)
    train(cursor)
    state = cursor.state()
    train(cursor)
    for name in ("new_pass", "rewind", "reopen"):
        monkeypatch.setattr(feed, name, lambda *_: pytest.fail("touched"))
    cursor.restore(state)
