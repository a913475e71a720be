"""An evaluator's port, talked to at random: whatever bytes come, it lives on and serves the chief afterwards.

`scripts/nightly.sh` runs the long form; OVERLAP_TRAIN_SEED chooses other conversations.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tensorflow as tf
from overlap_train.parallel.credentials import Credentials
from overlap_train.parallel.evaluator import EvaluatorPlace
from overlap_train.parallel.handshake import prove
from overlap_train.parallel.link import connect
from overlap_train.parallel.stream import Stream

from overlap_train._fit import evaluator_host as serving
from overlap_train._snapshot import Values
from overlap_train.records import ValidationResult
from tests.parallel.test_hosts import free_ports

pytestmark = pytest.mark.timeout(900)

SEED = int(os.environ.get("OVERLAP_TRAIN_SEED", "0"))
DESCRIPTION = {
    "version of overlap_train": "1",
    "cluster": '{"evaluator": ["localhost:1"]}',
    "program": "0123456789abcdef",
    "model": "dense\ndense",
}
HELLO = {"kind": "hello", "description": DESCRIPTION}
END = {"kind": "end", "epoch": [0], "history": {"loss": [0.5]}, "ended": "completed"}
WEIGHTS = [np.arange(6, dtype="float32").reshape(2, 3), np.zeros(3, "float32")]
NASTY = [
    None,
    True,
    -1,
    1e308,
    2**70,
    "",
    "\ud800",
    "x" * 1000,
    [],
    {},
    [[]],
    {"kind": "hello"},
    "hello",
    "end",
]


class Suite:
    """Adds up the weights instead of evaluating them."""

    reasons = ()
    rewindable_names = [""]

    def check(self, name, values):
        pass

    def evaluate(self, name, values):
        return ValidationResult({"loss": sum(float(np.sum(value)) for value in values.trainable)})


class State:
    """Two weights without a model."""

    outside = ()

    values = Values((tf.zeros((2, 3)), tf.zeros(3)), (), (), ())

    def read(self):
        return self.values

    def restore(self, values):
        self.values = values


def framed(content):
    """Returns a frame with a header of text, bytes or what JSON makes of anything else."""
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode(
            errors="surrogatepass"
        )
    return struct.pack(">4sIQ", b"OVT1", len(content), 0) + content


def message(content):
    return framed({"message": content, "sizes": []})


def is_chiefs(frame, key):
    """Returns whether a frame may end the evaluator: with the key a whole description, else the right one."""
    try:
        described = json.loads(frame[16:])["message"]["description"]
        whole = set(described) == set(DESCRIPTION) and all(isinstance(t, str) for t in described.values())
        return whole and (key is not None or described == DESCRIPTION)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def random_json(rng, depth=0):
    kind = rng.randrange(4 if depth < 4 else 2)
    if kind < 2:
        return rng.choice(NASTY)
    if kind == 2:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ["message", "sizes", "kind", "description", "cluster", "set", "error", ""]
    return {rng.choice(keys): random_json(rng, depth + 1) for _ in range(rng.randrange(4))}


def noise(rng):
    return rng.randbytes(rng.randrange(200))


def strange_head(rng):
    sizes = [0, 1, 16, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 32) - 1]
    head = struct.pack(">4sIQ", b"OVT1", rng.choice(sizes), rng.choice([*sizes, (1 << 64) - 1]))
    return head + noise(rng)


def strange_json(rng):
    content = random_json(rng)
    return framed(content) if rng.random() < 0.3 else framed({"message": content, "sizes": random_json(rng)})


def deep_or_broken(rng):
    return framed(
        rng.choice(
            [
                "[" * rng.randrange(1, 200_000),
                '{"message":' * rng.randrange(1, 50_000),
                "1" * rng.randrange(1, 10_000),
                b"\xff\xfe" + noise(rng),
                '{"message": {}, "sizes": [0]}',
                '{"message": {}, "sizes": [0.0]}',
                '{"message": {"kind": NaN}, "sizes": []}',
            ]
        )
    )


def incomplete_hello(rng):
    described = dict(DESCRIPTION)
    part = rng.choice(list(described))
    if rng.random() < 0.5:
        del described[part]
    else:
        described[part] = rng.choice([value for value in NASTY if not isinstance(value, str)])
    return message({"kind": "hello", "description": described})


def other_hello(rng):
    described = dict(DESCRIPTION)
    for part in rng.sample(list(described), rng.randrange(1, len(described))):
        described[part] = rng.choice(["", "x", described[part] + "\n", described[part][:-1], "\ud800"])
    return message({"kind": "hello", "description": described})


def cut_hello(rng):
    whole = message(HELLO)
    return whole[: rng.randrange(len(whole))]


def flipped_hello(rng):
    whole = bytearray(message(HELLO))
    for _ in range(rng.randrange(1, 4)):
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    return bytes(whole)


def another_program(rng):
    return rng.choice(
        [
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            bytes.fromhex("16030100a5010000a10303") + noise(rng),
            b"\x80\x04\x95" + noise(rng),
        ]
    )


def false_proof(rng):
    return b"OVA1" + rng.randbytes(32) + rng.choice([b"", b"OVAP" + rng.randbytes(32), b"OVAW", noise(rng)])


def nonsense_after_the_hello(rng):
    kinds = [None, "hello", "validate", "check", "end", "welcome", ["end"], 1]
    strange = {"kind": rng.choice(kinds), "set": rng.choice(["", "x", 1, None]), "epoch": rng.choice(NASTY)}
    return message(HELLO) + rng.choice([message(strange), framed(random_json(rng)), b"OVT2" + bytes(30)])


TALKS = [
    *(noise, strange_head, strange_json, deep_or_broken, incomplete_hello, other_hello),
    *(cut_hello, flipped_hello, another_program, false_proof, nonsense_after_the_hello),
]


def talk(rng, place):
    """Lets some strangers talk to the port at once, each in pieces, until all have been turned away."""
    host, _, port = place.address.rpartition(":")
    with contextlib.ExitStack() as closing:
        strangers = []
        for _ in range(rng.randrange(1, 6)):
            said = rng.choice(TALKS)(rng)
            if is_chiefs(said, place.credentials.key):
                continue
            stranger = call(host, int(port))
            closing.callback(stranger.close)
            strangers.append((stranger, said))
        for stranger, said in strangers:
            with contextlib.suppress(OSError, EOFError):  # it has been turned away in the midst of it
                if place.credentials.key is not None and rng.random() < 0.5:
                    prove(Stream(stranger), place.credentials.key, "evaluator", time.monotonic() + 60)
                stranger.settimeout(60)
                cut = rng.randrange(len(said) + 1)
                stranger.sendall(said[:cut])
                stranger.sendall(said[cut:])
                stranger.shutdown(socket.SHUT_WR)
        for stranger, _ in strangers:
            with contextlib.suppress(ConnectionError):
                while stranger.recv(4096):
                    pass
    return len(strangers)


def call(host, port):
    """Connects, for a minute at most: while one of them is served, the evaluator does not listen."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((host, port), timeout=60)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the evaluator does not listen any more"


def train(place):
    """Is the chief: has one snapshot validated, and ends."""
    with connect(place.address, "evaluator", timeout_s=60, credentials=place.credentials) as link:
        link.send(HELLO)
        assert link.receive(timeout_s=60)[0] == {"kind": "welcome", "rewindable": [""]}
        link.send({"kind": "validate", "set": "", "epoch": 0}, WEIGHTS)
        assert link.receive(timeout_s=60)[0] == {"kind": "result", "metrics": {"loss": 15.0}, "running": []}
        link.send(END, WEIGHTS)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["without a key", "with a key"])
def test_whatever_strangers_say_the_evaluator_lives_on(key, count):
    rng = random.Random(SEED)
    place = EvaluatorPlace(f"localhost:{free_ports(1)[0]}", "", 3600.0, credentials=Credentials(key))
    state, model = State(), SimpleNamespace(history=SimpleNamespace())
    open_files = len(psutil.Process().net_connections())
    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(serving.serve, place, DESCRIPTION, Suite(), state, model)
        try:
            talks = 0
            while talks < count:
                talks += talk(rng, place)
                assert not served.done(), served.exception()
        finally:
            train(place)
        assert served.result(timeout=60) == "completed"
    assert model.history.history == END["history"]
    np.testing.assert_array_equal(state.values.trainable[0], WEIGHTS[0])
    assert len(psutil.Process().net_connections()) == open_files
