"""The way of the data through the rooms, and which threads walk it."""

from __future__ import annotations

from svg import line, picture, rect, text

_WIDTH, _ROW, _BOX_WIDTH, _BOX_HEIGHT = 880, 92, 196, 52
_LANES = ("training thread", "validation workers", "training thread,\nbetween two calls")
# Letter and name, what it is, its room, its lane and its place in the lane.
_STAGES = (
    ("A source", "arrays, pipeline, generator", "_data/", 0, 0),
    ("B training", "many steps in each call", "_training/", 0, 1),
    ("C snapshot", "one read for each variable", "_snapshot.py", 0, 2),
    ("D shards", "split between batches", "_data/", 1, 1),
    ("E validation", "compiled calls only", "_validation/", 1, 2),
    ("F results", "in order, merged exactly", "_validation/", 2, 2),
    ("G delivery", "callbacks, with the snapshot", "_callbacks/", 2, 1),
    ("H accounts", "trained, hidden, waited", "monitoring/", 2, 0),
)
_WAYS = (
    ((0, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 2), (1, 2)), ((1, 1), (1, 2)),
    ((1, 2), (2, 2)), ((2, 2), (2, 1)), ((2, 1), (2, 0)),
)  # fmt: skip


def drawing() -> str:
    label = (
        "The training thread takes data from a source, trains and takes a snapshot. Workers validate it on "
        "shards of the validation set. Between two calls the training thread merges the results, delivers "
        "them to the callbacks and accounts for the time."
    )
    lanes = [part for number, name in enumerate(_LANES) for part in _lane(number, name)]
    stages = [_stage(*stage) for stage in _STAGES]
    return picture(_WIDTH, 10 + 3 * (_ROW + 10), label, *lanes, *stages, *(_way(*way) for way in _WAYS))


def _lane(number: int, name: str) -> list[str]:
    top, words = _top(number), name.split("\n")
    lines = [
        text(20, top + _ROW / 2 + 5 + 17 * (index - (len(words) - 1) / 2), part)
        for index, part in enumerate(words)
    ]
    return [rect("lane", 8, top, _WIDTH - 16, _ROW, radius=8), *lines]


def _top(lane: int) -> float:
    return 10 + lane * (_ROW + 10)


def _place(lane: int, column: int) -> tuple[float, float]:
    return 196 + column * 226, _top(lane) + (_ROW - _BOX_HEIGHT) / 2


def _stage(name: str, says: str, room: str, lane: int, column: int) -> str:
    x, y = _place(lane, column)
    return (
        rect("box", x, y, _BOX_WIDTH, _BOX_HEIGHT, radius=6)
        + text(x + 10, y + 20, name, kind="name")
        + text(x + _BOX_WIDTH - 10, y + 20, room, kind="code faint", anchor="end")
        + text(x + 10, y + 41, says, kind="small")
    )


def _way(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return an arrow between two stages, given as lane and column."""
    (x1, y1), (x2, y2) = _place(*start), _place(*end)
    if start[0] != end[0]:
        return line((x1 + _BOX_WIDTH / 2, y1 + _BOX_HEIGHT), (x2 + _BOX_WIDTH / 2, y2 - 2), arrow=True)
    middle = y1 + _BOX_HEIGHT / 2
    if x2 > x1:
        return line((x1 + _BOX_WIDTH, middle), (x2 - 2, middle), arrow=True)
    return line((x1, middle), (x2 + _BOX_WIDTH + 2, middle), arrow=True)
