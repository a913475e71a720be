"""`overlap-train explain` of a script."""

from __future__ import annotations

from tests.cli.conftest import findings

LISTENS = """
class Acts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise AssertionError("nothing is trained")
"""


def test_a_fit_that_overlaps(told):
    status, report = told("explain", "overlap_train.Trainer(model).fit(x, x[:, :1], validation_split=0.5)")
    assert status == 0
    assert findings(report, "fit")["overlap"]["value"] is True


def test_a_fit_in_step_says_why_and_what_would_change_it(told):
    body = f"{LISTENS}overlap_train.Trainer(model).fit(x, x[:, :1], validation_split=0.5, callbacks=[Acts()])"
    status, report = told("explain", body)
    found = findings(report, "fit")
    assert status == 0
    assert found["overlap"]["value"] is False
    assert "Acts.on_train_batch_end" in found["callback-acts"]["text"]
    assert 'on_change="continue"' in found["callback-acts"]["remedy"]


def test_a_fit_of_keras_is_told_what_to_write(told):
    _, report = told("explain", "model.fit(x, x[:, :1], validation_split=0.5)")
    assert "Trainer(model).fit" in findings(report, "fit")["called"]["remedy"]
    assert findings(report, "fit")["overlap"]["value"] is True


def test_a_fit_that_would_raise_is_wrong_usage(told):
    status, error = told("explain", "overlap_train.Trainer(model).fit(x, x[:, :1], epochs=-1)")
    assert status == 2
    assert "epochs" in error


def test_a_fit_is_explained_while_the_script_holds_its_files_open(told):
    body = """
import h5py, os, tempfile
path = os.path.join(tempfile.mkdtemp(), "data.h5")
with h5py.File(path, "w") as file:
    file["x"], file["y"] = x, x[:, :1]
with h5py.File(path) as file:
    overlap_train.Trainer(model).fit(file["x"], file["y"], shuffle="batch", validation_data=(x, x[:, :1]))
"""
    status, report = told("explain", body)
    assert (status, findings(report, "fit")["overlap"]["value"]) == (0, True), report


def test_a_generator_finds_the_modules_beside_the_script(told, tmp_path):
    (tmp_path / "beside_it.py").write_text("import numpy as np\nBATCH = np.ones((4, 2)), np.ones((4, 1))\n")
    body = """
def batches():
    import beside_it
    while True:
        yield beside_it.BATCH
model.fit(batches(), steps_per_epoch=2)
"""
    status, report = told("explain", body)
    assert status == 0, report
    assert findings(report, "fit")["called"]["value"] == "keras.Model.fit"
