"""What chief and evaluator say: an incomplete or ill-typed message is refused by name."""

from __future__ import annotations

import json

import pytest
from overlap_train.parallel.link import _LONGEST_HELLO, Refusal
from overlap_train.parallel.protocol import abridged, is_answer, is_request

from overlap_train.errors import HostMismatchError
from tests.fit.test_overlap_gain import judge

DESCRIPTION = {"version of overlap_train": "1", "cluster": "{}", "program": "ab", "model": "a\nb\n"}


def ask(hello, authenticated=False, in_step=None):
    return judge(hello, authenticated, description=DESCRIPTION, in_step=in_step)


def hello(**changes):
    return {"kind": "hello", "description": DESCRIPTION | changes}


def test_the_chief_is_let_in():
    assert ask(hello()) is None


@pytest.mark.parametrize(
    "message",
    [{}, {"kind": "hello"}, {"description": DESCRIPTION}, {"kind": ["hello"], "description": DESCRIPTION}]
    + [{"kind": "hello", "description": value} for value in (None, [], "x", 1, list(DESCRIPTION.items()))],
)
@pytest.mark.parametrize("authenticated", [False, True])
def test_a_message_without_a_description_is_refused(message, authenticated):
    with pytest.raises(Refusal, match="'hello' with a 'description'"):
        ask(message, authenticated)


@pytest.mark.parametrize("part", DESCRIPTION)
@pytest.mark.parametrize("authenticated", [False, True])
def test_a_missing_part_is_refused_by_name(part, authenticated):
    described = {name: text for name, text in DESCRIPTION.items() if name != part}
    with pytest.raises(Refusal, match=f"must have text as '{part}'; it has nothing"):
        ask({"kind": "hello", "description": described}, authenticated)


@pytest.mark.parametrize("part", DESCRIPTION)
@pytest.mark.parametrize("value", [None, 1, 0.5, True, [], {}])
def test_a_part_of_another_type_is_refused_by_name(part, value):
    with pytest.raises(Refusal, match=f"must have text as '{part}'; it has {type(value).__name__}"):
        ask(hello(**{part: value}))


def test_an_unknown_part_is_refused_by_name():
    with pytest.raises(Refusal, match="has 'colour', which the evaluator does not know"):
        ask(hello(colour="red"))


@pytest.mark.parametrize("text", ["a\nc\n", "a\nb", "", "a\rb\n", "a\nb\n\n", "\ud800"])
def test_a_chief_with_the_key_that_differs_ends_both(text):
    error = ask(hello(model=text), True)
    assert isinstance(error, HostMismatchError)
    assert "the evaluator has another model than the chief" in str(error)


SECRET = {part: f"first {part} of mine\nsecond {part} of mine" for part in DESCRIPTION}


@pytest.mark.parametrize("part", DESCRIPTION)
@pytest.mark.parametrize("lines", [0, 1], ids=["all of it differs", "one line differs"])
def test_who_differs_and_may_be_anybody_ends_nothing_and_learns_only_where(part, lines):
    theirs = "\n".join([*SECRET[part].split("\n")[:lines], "theirs"])
    message = {"kind": "hello", "description": SECRET | {part: theirs}}
    with pytest.raises(Refusal, match=f"another {part} than the chief: .* of mine' instead of") as raised:
        judge(message, False, description=SECRET, in_step=None)
    assert f"another {part} than the chief, which has {theirs!r}" in raised.value.told
    assert "of mine" not in raised.value.told.replace(repr(theirs), "")


def test_nobody_learns_a_description_by_asking():
    """Each answer that quotes the evaluator's own would let the next guess begin with what it quoted."""
    known, told = {}, []
    for _ in range(len(SECRET) + 1):
        with pytest.raises(Refusal) as raised:
            judge({"kind": "hello", "description": known}, False, description=SECRET, in_step=None)
        told.append(raised.value.told or str(raised.value))
        known |= {part: "" for part in SECRET if f"{part!r}; it has nothing" in told[-1]}
    assert known.keys() == SECRET.keys()
    assert not any("of mine" in each for each in told)


def test_a_validation_that_cannot_be_made_elsewhere_ends_both():
    assert isinstance(ask(hello(), in_step="validation changes variables"), ValueError)


END = {"kind": "end", "epoch": [0], "history": {"loss": [1.0]}, "ended": "completed"}


@pytest.mark.parametrize("message", [{"kind": "validate", "set": ""}, {"kind": "failed"}, END])
def test_requests_are_known(message):
    assert is_request(message)


@pytest.mark.parametrize(
    "message",
    [{}, {"kind": "hello"}, {"kind": None}, {"kind": "validate"}, {"kind": "check", "set": 1}]
    + [{name: value for name, value in END.items() if name != part} for part in END]
    + [
        END | change for change in ({"epoch": ["0"]}, {"history": []}, {"history": {"loss": 1}}, {"ended": 1})
    ],
)
def test_what_is_no_request_is_known(message):
    assert not is_request(message)


@pytest.mark.parametrize(
    "answer",
    [{}, {"kind": "welcome"}, {"kind": "result"}, {"kind": "result", "metrics": {"loss": 1.0}}]
    + [{"kind": "result", "metrics": m, "running": []} for m in (None, [], {"loss": "1"}, {"loss": None})]
    + [{"kind": "result", "metrics": {}, "running": r} for r in (None, [1], [{"loss": ["1"]}], {})],
)
def test_what_is_no_answer_is_known(answer):
    assert not is_answer(answer, with_metrics=True)


def test_answers_are_known():
    assert is_answer({"kind": "result"}, with_metrics=False)
    assert is_answer({"kind": "error", "error": "x"}, with_metrics=True)
    assert is_answer(
        {"kind": "result", "metrics": {"loss": 1.0}, "running": [{"loss": 2}]}, with_metrics=True
    )


def test_the_longest_description_fits_into_a_first_message():
    texts = ("\U0001f600" * 100_000, "\n".join(f"layer {i}" for i in range(100_000)), "x" * 99_000)
    for text in texts:
        described = {str(part): abridged(text) for part in range(9)}
        message = {"message": {"kind": "hello", "description": described}, "sizes": []}
        assert len(json.dumps(message).encode()) < _LONGEST_HELLO
    assert abridged("x" * 200_000) != abridged("x" * 199_999 + "y")
