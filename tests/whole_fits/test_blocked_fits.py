"""A fit that waits for ever is ended by signals, whatever it waits for, and its validation by `timeout_s`."""

import contextlib
import signal
import subprocess

import pytest

from tests import interpreters

WAIT_S = 120

# The program prints "blocked" where it waits for ever; a line of it is what is tried.
PROGRAM = """
import os, signal, sys, threading, time
import keras, numpy as np, tensorflow as tf
from overlap_train import Trainer, ValidationPolicy, errors, routed

x, y = np.ones((16, 6), "float32"), np.ones((16, 1), "float32")


def sleep():
    time.sleep(10_000)


def lock():
    lock = threading.Lock()
    lock.acquire(), lock.acquire()


def loop():
    while True:
        pass


WAITS = {
    "sleep": sleep,
    "lock": lock,
    "loop": loop,
    "pipe": lambda: os.read(os.pipe()[0], 1),
}


def block(how="sleep", say=True):
    if say:
        print("blocked", flush=True)
    WAITS[how]()


def batches(count, how="sleep"):
    for _ in range(count):
        yield x[:8], y[:8]
    block(how)


class Sequence(keras.utils.PyDataset):
    def __init__(self, at, say=True, **arguments):
        super().__init__(**arguments)
        self.at, self.say = at, say

    def __len__(self):
        return 40 if self.at != "len" else block()

    def __getitem__(self, index):
        return (x[:8], y[:8]) if index != self.at else block(say=self.say)


def dataset(count):
    spec = tf.TensorSpec((8, 6)), tf.TensorSpec((8, 1))
    return tf.data.Dataset.from_generator(lambda: batches(count), output_signature=spec)


def dequeued(count):
    rows = tf.queue.FIFOQueue(count, tf.float32)
    rows.enqueue_many([tf.ones(count)])
    return tf.data.Dataset.range(count + 1).map(lambda _: (tf.fill((8, 6), rows.dequeue()), tf.ones((8, 1))))


class Says(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:  # no Python runs where the next one waits
            threading.Timer(1.0, print, ["blocked"], {"flush": True}).start()


class Installs(keras.callbacks.Callback):
    # It takes longer to end the process than a fit would wait for its end.
    def on_epoch_begin(self, epoch, logs=None):
        signal.signal(signal.SIGTERM, lambda *_: over.set())
        over = threading.Event()
        print("blocked", flush=True)
        over.wait()
        threading.Event().wait(4)
        os._exit(7)


class Blocks(keras.callbacks.Callback):
    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, lambda *_, **__: block())


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")


def fit(x=x, y=y, *, policy=None, **arguments):
    return Trainer(model, validation=policy).fit(x, y, **{"epochs": 3, "verbose": 0, **arguments})


def training(data, **arguments):
    fit(data, None, **arguments)


try:
    LINE
except KeyboardInterrupt as error:
    print("KeyboardInterrupt", error, flush=True)
    os._exit(3)
except errors.ValidationTimeoutError as error:
    print("ValidationTimeoutError", error, flush=True)
    os._exit(4)
"""
DATA = {
    "generator": "training(batches(300), steps_per_epoch=400)",
    "dataset": "training(dataset(300), steps_per_epoch=400)",
    "sequence": "training(Sequence(30))",
    "sequence of workers": "training(Sequence(4, say=False, workers=2), callbacks=[Says()])",
    "native": "training(dequeued(4), callbacks=[Says()])",
    "lock": "training(batches(300, 'lock'), steps_per_epoch=400)",
    "pipe": "training(batches(300, 'pipe'), steps_per_epoch=400)",
    "loop": "training(batches(300, 'loop'), steps_per_epoch=400)",
}
PYTHON = {
    "epoch": "fit(callbacks=[Blocks('on_epoch_end')])",
    "batch": "fit(callbacks=[Blocks('on_train_batch_end')])",
    "opening": "fit(validation_data=batches(1))",
    "length": "fit(validation_data=Sequence('len'))",
}


@pytest.fixture
def blocked():
    """Starts a program, and returns it when it waits for ever."""
    started = []

    def start(line):
        code = PROGRAM.replace("LINE", line)
        started.append(interpreters.start(["-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        assert started[0].stdout.readline() == "blocked\n", started[0].stderr.read()
        return started[0]

    yield start
    for each in started:
        each.kill()


def ended(process):
    """Returns how a program ends, and the last line that it prints."""
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out.strip().rpartition("\n")[2].split(":")[0], err


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("line", "number"),
    [
        *((line, signal.SIGTERM) for line in (*DATA, *PYTHON)),
        *((line, signal.SIGINT) for line in PYTHON),
    ],
)
def test_what_never_comes_is_ended_by_the_first_signal(line, number, blocked):
    """Not data by the first Ctrl-C, which lets the fit end in order."""
    process = blocked((DATA | PYTHON)[line])
    process.send_signal(number)
    code, last, err = ended(process)
    if number == signal.SIGINT:
        assert (code, last) == (3, "KeyboardInterrupt SIGINT, then SIGINT"), err
    else:
        assert code == -signal.SIGTERM, err


@pytest.mark.by_default("generator-SIGINT")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("line", DATA)
def test_a_second_signal_ends_what_a_first_ctrl_c_does_not(line, number, blocked):
    process = blocked(DATA[line])
    process.send_signal(signal.SIGINT)
    while process.poll() is None:  # two at once may be one
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
    code, last, err = ended(process)
    # Where Python waits for the data; as the fit ends, the second signal is Python's own to raise.
    told = code == 3 and last.startswith("KeyboardInterrupt")
    assert told or -code in (signal.SIGINT, number), err  # of two at once either may be heard first


HANDLED = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n    fit(callbacks=[Blocks('on_epoch_end')])"


@pytest.mark.parametrize(
    ("line", "expected"),
    [("fit(callbacks=[Installs()])", 7), pytest.param(HANDLED, 9, marks=pytest.mark.nightly)],
    ids=["of a callback", "of the user"],
)
def test_a_handler_that_is_installed_decides_and_what_it_raises_comes_in_time(line, expected, blocked):
    process = blocked(line)
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == expected, err


@pytest.mark.by_default("alone-Sequence(0)")
@pytest.mark.parametrize(
    "made", ["batches(1)", "batches(0)", "Sequence(0)", "Sequence(1)", "Sequence('len')"]
)
@pytest.mark.parametrize("names", ["{}", "dict(near={}, far=(x, y))"], ids=["alone", "named"])
def test_validation_data_that_is_not_opened_in_time_is_an_error(made, names, blocked):
    policy = "ValidationPolicy(timeout_s=0.5)"
    process = blocked(f"fit(policy={policy}, validation_data={names.format(made)})")
    code, last, err = ended(process)
    assert (code, last.split(" reading")[0]) == (4, "ValidationTimeoutError"), err
