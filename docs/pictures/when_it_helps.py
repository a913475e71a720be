"""What to expect of a training: a few questions, each with its answer to the right."""

from __future__ import annotations

from svg import line, picture, rect, text

# A question in one line or two, why its answer is yes, what to expect then, and the kind of box for that.
_QUESTIONS = (
    (["Do steps take a millisecond or less?"], "nearly all of it is overhead", "Much faster", "third"),
    (
        ["Does it train convolutions on a CPU?"],
        "splits, compiled kernels",
        "Half the time is common",
        "third",
    ),
    (
        ["Is a core, a device or a host idle?"],
        "validations run there",
        "The validations' time is saved",
        "third",
    ),
    (
        ["Does a callback act in each batch,", "or a step have side effects?"],
        "in step, as in Keras",
        "Only the overhead is saved",
        "validate",
    ),
)
_LEFT, _TOP, _STEP = 16, 48, 62


def drawing() -> str:
    rows = [part for number, row in enumerate(_QUESTIONS) for part in _row(_TOP + number * _STEP, *row)]
    y = _TOP + len(_QUESTIONS) * _STEP
    return picture(
        880,
        y + 60,
        "Steps of a millisecond or less: much faster. Convolutions on a CPU: half the time is common. "
        "Something idle: the validations' time is saved. Callbacks in each batch or side effects: only the "
        "overhead is saved.",
        text(_LEFT, 28, "Ask each question; the answers add up", kind="head"),
        *rows,
        rect("lane", _LEFT, y, 380, 40),
        text(_LEFT + 14, y + 25, "None of these: all cores busy in training"),
        line((_LEFT + 380, y + 20), (586, y + 20), arrow=True),
        rect("lane", 592, y, 272, 40),
        text(606, y + 25, "As in Keras: validated in step", kind="name"),
    )


def _row(y: float, question: list[str], why: str, result: str, kind: str) -> list[str]:
    middle, last = y + 20, len(question) - 1
    return [
        rect("box", _LEFT, y, 380, 40, radius=6),
        *(text(_LEFT + 14, middle + 5 + 17 * (i - last / 2), words) for i, words in enumerate(question)),
        line((_LEFT + 380, middle), (586, middle), arrow=True),
        text(491, middle - 6, f"Yes: {why}.", kind="small", anchor="middle"),
        rect(kind, 592, y, 272, 40, radius=6),
        text(606, middle + 5, result, kind="name"),
    ]
