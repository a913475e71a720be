"""`overlap-train explain`: a script is run up to its first `fit`, which is explained and does not train."""

import sys

import pytest

from overlap_train import Trainer
from overlap_train.cli.main import main
from overlap_train.cli.report import UsageError
from overlap_train.cli.script import first_fit

HEAD = """
import sys
import keras
import numpy as np
import overlap_train
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((8, 2), "float32")
"""


def kept(reached):
    return reached


@pytest.fixture
def script(tmp_path):
    def write(body, head=HEAD):
        path = tmp_path / "training.py"
        path.write_text(head + body)
        return path

    return write


@pytest.mark.parametrize(
    ("call", "by_keras"),
    [
        ("overlap_train.Trainer(model).fit(x, x[:, :1], epochs=3)", False),
        ("model.fit(x, x[:, :1], epochs=3)", True),
        ("with overlap_train.routed():\n    model.fit(x, x[:, :1], epochs=3)", False),
        ("class Mine(overlap_train.Trainer): pass\nMine(model).fit(x, x[:, :1], epochs=3)", False),
        ("try:\n    model.fit(x, x[:, :1], epochs=3)\nexcept Exception:\n    pass", True),
    ],
    ids=["trainer", "keras", "routed", "subclass", "guarded"],
)
def test_the_first_fit_ends_the_script(script, call, by_keras, tmp_path):
    fit = Trainer.fit
    reached = first_fit(script(f"{call}\nopen({str(tmp_path / 'behind')!r}, 'w')"), [], kept)
    assert reached.kwargs["epochs"] == 3
    assert reached.args[0].shape == (8, 2)
    assert reached.by_keras is by_keras
    assert not (tmp_path / "behind").exists()
    assert Trainer.fit is fit


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise RuntimeError('no data')", "raised before it called fit: RuntimeError: no data"),
        ("sys.exit(3)", "ended with status 3 before it called fit"),
        ("sys.exit('no data')", "said no data and ended before it called fit"),
        ("model.evaluate(x, x[:, :1], verbose=0)", "has not called"),
        ("def broken(:", "SyntaxError"),
        ("class Mute(Exception):\n    __str__ = None\nraise Mute", "fit: Mute: it cannot be printed"),
    ],
    ids=["raises", "exits", "exits-with-words", "no-fit", "syntax", "raises-what-cannot-be-printed"],
)
def test_a_script_without_a_fit_is_wrong_usage(script, body, told):
    with pytest.raises(UsageError, match=told):
        first_fit(script(body), [], kept)


@pytest.mark.parametrize("name", ["nowhere.py", "nowhere" * 1000 + ".py", "\0nowhere.py"])
def test_a_missing_script_is_named(tmp_path, name):
    with pytest.raises(UsageError, match=r"there is no script .*nowhere\.py"):
        first_fit(tmp_path / name, [], kept)


def test_the_call_is_looked_at_where_it_is_made(script, tmp_path):
    (tmp_path / "late_neighbour.py").write_text("ROWS = 8\n")
    body = """
import contextlib, os
@contextlib.contextmanager
def opened():
    os.environ["OPENED"] = "yes"
    yield
    del os.environ["OPENED"]
with opened():
    model.fit(x, x[:, :1])
"""

    def look(reached):
        import os

        import late_neighbour  # beside the script

        assert Trainer.fit.__name__ == "fit"
        return os.environ["OPENED"], late_neighbour.ROWS, sys.argv[1:]

    assert first_fit(script(body), ["--rows"], look) == ("yes", 8, ["--rows"])
    del sys.modules["late_neighbour"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "around",
    [
        "try:\n    {call}\nexcept Exception:\n    pass",
        "try:\n    {call}\nexcept:\n    raise SystemExit(3)",
        "import threading\nt = threading.Thread(target=lambda: {call})\nt.start()\n"
        "t.join(); raise KeyError('no history')",
    ],
    ids=["exceptions", "all", "thread"],
)
def test_what_the_look_raises_is_raised_whatever_the_script_does_about_it(script, around):
    looks = []

    def look(reached):
        looks.append(reached)
        raise UsageError("it would raise")

    body = around.format(call="model.fit(x, x[:, :1])") + "\nmodel.fit(x, x[:, :1])"
    with pytest.raises(UsageError, match="it would raise"):
        first_fit(script(body), [], look)
    assert len(looks) == 1


def test_another_backend_also_one_that_the_script_asks_for_is_refused_by_name(script, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(UsageError, match=r"the backend 'jax'.*set KERAS_BACKEND=tensorflow"):
        first_fit(script("raise SystemExit"), [], kept)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # put back behind what the script sets
    head = 'import os\nos.environ["KERAS_BACKEND"] = "jax"\n' + HEAD
    with pytest.raises(UsageError, match="the backend 'jax'"):
        first_fit(script("model.fit(x, x[:, :1])", head), [], kept)


LISTENS = """
class Acts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise AssertionError("nothing is trained")
"""


def test_a_fit_that_overlaps_and_what_to_write_for_one_of_keras(script, told):
    found = told("explain", script("overlap_train.Trainer(model).fit(x, x[:, :1], validation_split=0.5)"))
    assert found["fit"]["overlap"]["value"] is True
    found = told("explain", script("model.fit(x, x[:, :1], validation_split=0.5)"))
    assert "Trainer(model).fit" in found["fit"]["called"]["remedy"]
    assert found["fit"]["overlap"]["value"] is True


def test_a_fit_in_step_says_why_and_what_would_change_it(script, told):
    call = "overlap_train.Trainer(model).fit(x, x[:, :1], validation_split=0.5, callbacks=[Acts()])"
    found = told("explain", script(LISTENS + call))["fit"]
    assert found["overlap"]["value"] is False
    assert "Acts.on_train_batch_end" in found["callback-acts"]["text"]
    assert 'on_change="continue"' in found["callback-acts"]["remedy"]


def test_a_fit_that_would_raise_is_wrong_usage(script, capsys):
    assert main(["explain", str(script("overlap_train.Trainer(model).fit(x, x[:, :1], epochs=-1)"))]) == 2
    assert "epochs" in capsys.readouterr().err
