"""`overlap-train evaluate`: the kept weights of a run are evaluated by what a script's `fit` was given."""

import pytest

from overlap_train import CheckpointPolicy, Trainer
from overlap_train.cli.main import main
from tests import pools
from tests.networks import VALIDATION_ROWS, arrays

SCRIPT = """
import sys
import keras
from overlap_train import Trainer, ValidationPolicy
from tests import pools
from tests.networks import VALIDATION_ROWS, arrays, crossentropy

model = pools.sequential()
two = keras.metrics.SparseTopKCategoricalAccuracy(2, name="two")
model.compile("sgd", crossentropy(), metrics=["accuracy", two])
{fit}
open(sys.argv[1], "w")
"""
FIT = "Trainer(model, validation={policy}).fit(*arrays(), 32, epochs=2, {validation})"
DATA = "validation_data=arrays(VALIDATION_ROWS, 1)"


@pytest.fixture
def run(tmp_path):
    """A directory with the weights of two epochs, and the history of that training."""
    validation = arrays(VALIDATION_ROWS, 1)
    resume = CheckpointPolicy(tmp_path / "run", keep_weights="all")
    trainer = Trainer(pools.sequential())
    trainer.fit(*arrays(), 32, epochs=2, validation_data=validation, resume=resume, verbose=0)
    return tmp_path / "run", trainer.model.history.history


def script(directory, policy="ValidationPolicy()", validation=DATA):
    path = directory / f"{len(validation)}.py"
    path.write_text(SCRIPT.format(fit=FIT.format(policy=policy, validation=validation)))
    return str(path)


def test_each_epoch_has_its_old_numbers_and_those_of_a_new_metric(run, tmp_path, told):
    directory, history = run
    policy = f"ValidationPolicy(evaluator={str(directory)!r})"  # as the training itself had it
    epochs = told("evaluate", directory, script(tmp_path, policy), tmp_path / "behind")["epochs"]
    assert list(epochs) == ["epoch 1", "epoch 2"]
    for number, epoch in enumerate(epochs.values()):
        assert epoch["value"]["val_accuracy"] == history["val_accuracy"][number]
        assert epoch["value"]["val_accuracy"] < epoch["value"]["val_two"] <= 1.0
        assert "val_two 0." in epoch["text"]
    assert not (tmp_path / "behind").exists()


def test_what_cannot_be_evaluated_is_said(run, tmp_path, capsys):
    directory, _ = run
    (tmp_path / "empty").mkdir()
    assert main(["evaluate", str(tmp_path / "empty"), script(tmp_path)]) == 0
    assert "holds no weights" in capsys.readouterr().out
    split = script(tmp_path, validation="validation_split=0.5")
    wrong = [
        (["evaluate", str(tmp_path / "none"), "x.py"], "there is no directory"),
        (["evaluate", str(directory), split], "give it the rows as validation_data"),
        (["evaluate", str(directory), script(tmp_path, validation="verbose=0")], "needs validation_data"),
        (["evaluate", "--wait=-1", str(directory), split], "no number of seconds"),
    ]
    for arguments, message in wrong:
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
