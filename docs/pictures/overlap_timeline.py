"""Three epochs with Keras and with `Trainer`: a drawing of who works when, not a measurement."""

from __future__ import annotations

from svg import line, picture, rect, text

_EPOCH, _VALIDATION, _LEFT, _HEIGHT = 190, 70, 150, 34
_HALF = 62  # of a validation, on a core that is shared: longer than half of the time
_EPOCHS = 3
_END = _LEFT + _EPOCHS * (_EPOCH + _VALIDATION)


def drawing() -> str:
    return picture(
        _END + 30,
        322,
        "Keras trains and validates three epochs in turn. Trainer validates each epoch on worker threads "
        "while the next one is trained, and saves the time of two validations.",
        *_keras(62),
        *_trainer(152),
        *_legend(296),
    )


def _bar(kind: str, x: float, y: float, width: float, words: str, height: float = _HEIGHT) -> str:
    label = text(
        x + width / 2, y + height / 2 + 4.5, words, anchor="middle", kind="" if height > 25 else "small"
    )
    return rect(kind, x, y, width, height) + label


def _lane(name: str, y: float, height: float = _HEIGHT) -> str:
    return text(16, y + height / 2 + 4.5, name)


def _keras(y: float) -> list[str]:
    parts = [text(16, y - 26, "keras.Model.fit", kind="head"), _lane("one thread", y)]
    for epoch in range(_EPOCHS):
        x = _LEFT + epoch * (_EPOCH + _VALIDATION)
        parts.append(_bar("train", x, y, _EPOCH, f"train {epoch + 1}"))
        parts.append(_bar("validate", x + _EPOCH, y, _VALIDATION, f"val {epoch + 1}"))
    return parts


def _trainer(y: float) -> list[str]:
    parts = [text(16, y - 18, "Trainer.fit", kind="head"), _lane("training thread", y)]
    workers = [y + _HEIGHT + 22, y + _HEIGHT + 48]
    parts += [_lane(f"worker {number}", place, 20) for number, place in enumerate(workers, 1)]
    for epoch in range(_EPOCHS):
        start, end = _LEFT + epoch * _EPOCH, _LEFT + (epoch + 1) * _EPOCH
        parts.append(_bar("train", start, y, _EPOCH, f"train {epoch + 1}"))
        half = f"½ val {epoch + 1}"
        parts += [_bar("validate", end + 10, place, _HALF, half, 20) for place in workers]
        parts.append(line((end, y + _HEIGHT), (end, workers[1] + 10), (end + 7, workers[1] + 10), arrow=True))
        parts.append(line((end, workers[0] + 10), (end + 7, workers[0] + 10), arrow=True))
        parts.append(
            rect("snapshot", end - 3, y - 5, 6, _HEIGHT + 10, radius=3, title="snapshot of the weights")
        )
        done = end + 10 + _HALF
        back = ((done, workers[0] + 10), (done + 10, workers[0] + 10), (done + 10, y + _HEIGHT + 3))
        parts.append(line(*back, arrow=True))
    end = _LEFT + _EPOCHS * _EPOCH + 20 + _HALF
    parts += [
        line((end, y - 12), (end, y + _HEIGHT)),
        line((_END, 62 + _HEIGHT), (_END, y + _HEIGHT)),
        line((end + 3, y + 12), (_END - 3, y + 12), arrow=True),
        text((end + _END) / 2, y + 4, "saved", anchor="middle", kind="small"),
    ]
    return parts


def _legend(y: float) -> list[str]:
    return [
        rect("snapshot", 16, y - 14, 6, 18, radius=3),
        text(30, y, "the snapshot: one read for each variable", kind="small"),
        line((296, y - 4), (318, y - 4), arrow=True),
        text(326, y, "weights to the workers, and results back to the callbacks", kind="small"),
        text(_END + 14, y, "A drawing, not a measurement.", kind="small faint", anchor="end"),
    ]
