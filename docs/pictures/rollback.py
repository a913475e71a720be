"""A callback changes the rate after epoch 2: what ran ahead is dropped, and epoch 3 is trained again."""

from __future__ import annotations

from svg import line, picture, rect, text

_LEFT, _EPOCH, _VALIDATION, _TOP, _HEIGHT = 150, 170, 84, 66, 34


def drawing() -> str:
    second, late = _LEFT + 2 * _EPOCH, _LEFT + 2 * _EPOCH + _VALIDATION + 22
    workers = _TOP + _HEIGHT + 30
    return picture(
        880,
        236,
        "Epochs 1 and 2 are trained, and epoch 3 begins. The result of epoch 2 arrives, and a callback "
        "halves the rate. What was trained of epoch 3 is dropped. Epoch 3 is trained again from the snapshot "
        "of epoch 2.",
        text(16, 30, "ReduceLROnPlateau halves the rate after epoch 2", kind="head"),
        text(16, _TOP + 22, "training thread"),
        text(16, workers + 16, "workers"),
        *_bar("train", _LEFT, _EPOCH, "train 1"),
        *_bar("train", _LEFT + _EPOCH, _EPOCH, "train 2"),
        *_bar("idle", second, late - second, "train 3"),
        *_bar("train", late, _EPOCH, "train 3, half the rate"),
        *_bar("idle", late + _EPOCH, 880 - 26 - late - _EPOCH, "train 4 …", ends=False),
        *(_validation(_LEFT + epoch * _EPOCH, workers, f"val {epoch}") for epoch in (1, 2)),
        *_back(second, late, workers + 42),
        *_legend(218),
    )


def _bar(kind: str, x: float, width: float, words: str, *, ends: bool = True) -> list[str]:
    parts = [rect(kind if ends else "train", x, _TOP, width, _HEIGHT)]
    return [*parts, text(x + width / 2, _TOP + 21.5, words, anchor="middle", kind="small")]


def _validation(x: float, y: float, words: str) -> str:
    return "".join(
        (
            rect("snapshot", x - 3, _TOP - 5, 6, _HEIGHT + 10, radius=3, title="snapshot of the weights"),
            line((x, _TOP + _HEIGHT), (x, y + 12), (x + 7, y + 12), arrow=True),
            rect("validate", x + 10, y, _VALIDATION, 24),
            text(x + 10 + _VALIDATION / 2, y + 16, words, anchor="middle", kind="small"),
            line(
                (x + 10 + _VALIDATION, y + 12),
                (x + 22 + _VALIDATION, y + 12),
                (x + 22 + _VALIDATION, _TOP + _HEIGHT + 3),
                arrow=True,
            ),
        )
    )


def _back(snapshot: float, change: float, y: float) -> list[str]:
    """The way back from the callback's change to the snapshot that it saw."""
    return [
        line(
            (change, _TOP + _HEIGHT + 4),
            (change, y),
            (snapshot - 8, y),
            (snapshot - 8, _TOP + _HEIGHT + 8),
            arrow=True,
        ),
        text(change + 8, y - 12, "the callback changes the rate:", kind="small"),
        text(change + 8, y + 4, "back to the snapshot that it saw", kind="small"),
    ]


def _legend(y: float) -> list[str]:
    return [
        rect("idle", 16, y - 13, 26, 16, radius=2),
        text(50, y, "trained ahead and dropped: EpochAccount.rolled_back_s", kind="small"),
        text(864, y, "A drawing, not a measurement.", kind="small faint", anchor="end"),
    ]
