"""A killed fit, called again, ends as Keras's unbroken one, with all that its callbacks keep and share."""

from __future__ import annotations

import collections
import enum

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.killing import Kills
from tests.networks import VALIDATION_ROWS, Outcome, arrays, assert_alike, assert_same_outcome, sequential
from tests.whole_fits.comparing import killed_and_resumed

X, Y = arrays(48)
VALIDATION = arrays(VALIDATION_ROWS, 1)
EPOCHS = 5


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


class Tracker:
    """What a callback has beside its own attributes."""

    def __init__(self):
        self.calls, self.phase, self.rng = 0, Phase.WARM, np.random.default_rng(3)

    def turn(self):
        self.calls += 1
        self.phase = Phase.MAIN
        return self.rng.uniform(0.5, 1.0)

    def get_state(self):
        return {"calls": self.calls, "phase": self.phase.name, "rng": self.rng.bit_generator.state}

    def set_state(self, state):
        self.calls, self.phase = state["calls"], Phase[state["phase"]]
        self.rng.bit_generator.state = state["rng"]


class Stages(keras.callbacks.Callback):
    """Goes through stages, of which one is the present one; drives the learning rate by where it stands."""

    __slots__ = ("turns",)

    def __init__(self, board):
        super().__init__()
        self.current, self.turns, self.board = None, 0, board
        self.stages = [{"name": name, "losses": []} for name in "abc"]
        self.by_name = {stage["name"]: stage for stage in self.stages}
        self.means = {"even": keras.metrics.Mean(), "odd": keras.metrics.Mean()}
        self.tracker = Tracker()

    def on_train_begin(self, logs=None):
        self.current = self.stages[0]

    def on_epoch_end(self, epoch, logs=None):
        self.turns += 1
        self.current["losses"].append(logs["loss"])
        self.means["odd" if epoch % 2 else "even"].update_state(logs["loss"])
        self.current = self.stages[(self.stages.index(self.current) + 1) % 3]
        self.board["turns"].append(len(self.by_name["b"]["losses"]))
        rate = 0.01 / (1 + len(self.stages[1]["losses"]) + len(self.board["seen"]))
        self.model.optimizer.learning_rate = rate * self.tracker.turn()


class Watches(keras.callbacks.Callback):
    """Looks at what the other one writes, and adds to it."""

    def __init__(self, board):
        super().__init__()
        self.turns, self.board, self.first = board["turns"], board, None
        self.window = collections.defaultdict(lambda: collections.deque(maxlen=2))

    def on_epoch_end(self, epoch, logs=None):
        self.first = self.first or {"epoch": epoch}
        self.board["seen"].append(self.first if len(self.turns) > 1 else None)
        self.first["epoch"] += 1
        self.window["turns"].append(self.turns[-1] + len(self.turns))


def fit(train, model, kills):
    """Return what callbacks keep in the end and have in common."""
    board = {"turns": [], "seen": []}
    own = stages, watches, _ = Stages(board), Watches(board), kills
    train(X, Y, batch_size=16, epochs=EPOCHS, validation_data=VALIDATION, callbacks=list(own), verbose=0)
    return {
        "stages": stages.stages,
        "current": stages.current["name"],
        "tracker": (stages.tracker.calls, stages.tracker.phase.name),
        "means": {phase: float(mean.result()) for phase, mean in stages.means.items()},
        "board": board,
        "window": {name: list(turns) for name, turns in watches.window.items()},
        "turns": stages.turns,
        "rate": float(model.optimizer.learning_rate),
        "common": [
            any(stages.current is stage for stage in stages.stages),
            all(stages.by_name[stage["name"]] is stage for stage in stages.stages),
            watches.turns is watches.board["turns"] is stages.board["turns"] is board["turns"],
            [each is watches.first for each in board["seen"]],
        ],
    }


@pytest.mark.nightly
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("last", [1, 3])
def test_killed_and_called_again_callbacks_go_on_as_if_nothing_had_been(tmp_path, lag, last):
    model, found = sequential(), []
    expected = fit(model.fit, model, Kills())

    def resumable(kills):
        model = sequential()
        trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always"))
        found.append(fit(lambda *data, **named: trainer.fit(*data, resume=tmp_path, **named), model, kills))
        return trainer

    trainer = killed_and_resumed(resumable, epoch=last)
    assert f"resumed after epoch {last}" in trainer.messages
    assert_alike(found[-1], expected, rtol=1e-4, atol=1e-4)
    assert_same_outcome(trainer.model, Outcome.of(model))
