"""A training that is resumed many times: what `fit` does around a checkpoint, without its steps."""

from __future__ import annotations

import collections
import datetime
import enum
from pathlib import Path

import keras
import numpy as np

from overlap_train._checkpoint.content import StartPoint
from overlap_train._checkpoint.fingerprints import fingerprint
from overlap_train._checkpoint.resume import Resumer
from overlap_train._data.cursor import Cursor, CursorState
from overlap_train._data.iterator_feed import make_feed
from overlap_train._keras.data import recognize
from overlap_train._snapshot import ModelState
from overlap_train.options.checkpoint import CheckpointPolicy

LOGS = {"loss": 0.5, "val_loss": 0.25}
POSITION = CursorState(1, 3, False, data={"seed": 0})


class Directory:
    """A directory whose files are put back as they were."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    def restore(self) -> Path:
        for file in self.path.rglob("*"):
            if file.is_file() and file not in self._files:
                file.unlink()
        for file, content in self._files.items():
            file.write_bytes(content)
        return self.path


class Mark:
    """What a callback keeps an object of."""

    def __init__(self) -> None:
        self.count, self.seen, self.phase = 1, [2], Phase.MAIN


class Phase(enum.Enum):
    MAIN = 1


class Remembering(keras.callbacks.Callback):
    """Remembers a value of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = collections.deque([1, 2.5], maxlen=4)
        self.pairs = {"a": (1, "b"), 3: {4, 5}}
        self.array, self.scalar = np.arange(4.0), np.float32(2)
        self.average = keras.Variable(np.zeros(3, "float32"))
        self.text, self.bits, self.point = "text", b"\x00\xff", 1 + 2j
        self.mark, self.random, self.day = Mark(), np.random.default_rng(1), datetime.datetime(2026, 1, 2)
        self.bits_of_random = np.random.Philox(2)
        self.bits_of_random.random_raw()
        self.common = {"mark": self.mark, 1: [self.array, self.seen]}

    def get_config(self):
        return {}


class Speaking(keras.callbacks.Callback):
    """Says itself what it remembers."""

    def get_state(self):
        return {"count": 3, "array": np.zeros(2)}

    def set_state(self, state):
        pass


class Training:
    """What one `fit` hands to its resumer, made once and resumed many times."""

    def __init__(self, directory: Path) -> None:
        keras.utils.set_random_seed(0)
        self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        self.model.compile("adam", "mse")
        x, y = np.zeros((6, 2), "float32"), np.zeros((6, 1), "float32")
        self.model.train_on_batch(x, y)
        self.state = ModelState(self.model)
        self.feed = make_feed(recognize(x, y, batch_size=2, shuffle=True), hold_in_memory=lambda size: True)
        self.policy = CheckpointPolicy(directory=directory / "run")
        self.log = directory / "log.csv"
        self.initial = self.state.read()
        self.begun: list[int] = []  # epochs inside which it went on

    def resumer(self) -> Resumer:
        belongs_to = fingerprint(self.model, self.feed)
        return Resumer(self.policy, belongs_to, self.state)

    def callbacks(self) -> list[keras.callbacks.Callback]:
        made = [
            keras.callbacks.EarlyStopping(patience=99, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(patience=99),
            keras.callbacks.CSVLogger(self.log),
            Remembering(),
            Speaking(),
            keras.callbacks.History(),
        ]
        for callback in made:
            callback.set_model(self.model)
        return made

    def save(self, logs=LOGS) -> bytes:
        """Runs an epoch, writes its checkpoint twice, and returns the content."""
        resumer, callbacks = self.resumer(), self.callbacks()
        resumer.accept(callbacks)
        for hook in ("on_train_begin", "on_epoch_end", "on_train_end"):
            for callback in callbacks:
                getattr(callback, hook)(*([0, dict(LOGS)] if hook == "on_epoch_end" else [{}]))
            if hook == "on_epoch_end":
                point = StartPoint(1, 3, False, logs, 1, POSITION)
                for _ in range(2):
                    resumer.delivered(point, self.state.read(), callbacks, last=True)
                    resumer.wait()
        resumer.close()
        return (Path(self.policy.directory) / "ckpt-000002.otck").read_bytes()

    def resume(self) -> StartPoint:
        """Resumes and delivers another epoch; what is raised is raised by `fit`."""
        resumer, callbacks = self.resumer(), self.callbacks()
        try:
            resumer.accept(callbacks)
            for callback in callbacks:
                callback.on_train_begin({})
            point = resumer.start(self.state, Cursor(self.feed, None), callbacks, self.begun.append)
            for callback in callbacks:
                if not isinstance(callback, keras.callbacks.CSVLogger):
                    callback.on_epoch_end(1, dict(LOGS))
        finally:
            resumer.close()
            for callback in callbacks:
                callback.on_train_end({})
            self.state.restore(self.initial)
        return point
