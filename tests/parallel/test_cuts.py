"""Hosts that cannot reach each other for a while wait, and the result is that of an unbroken training."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading

import pytest

from tests.parallel.test_hosts import PLATEAU, assert_same_result, errors, finish, run, start

CUT_S = float(os.environ.get("OVERLAP_TRAIN_CUT_S", "10"))


class Cable(contextlib.ExitStack):
    """A port whose connections lead to an address; it can be made to hold back all that comes."""

    def __init__(self, address: str) -> None:
        super().__init__()
        host, _, port = address.rpartition(":")
        self._to = host, int(port)
        self._server = self.enter_context(socket.create_server(("localhost", 0)))
        self.address = f"localhost:{self._server.getsockname()[1]}"
        self.open = threading.Event()
        self.open.set()
        self._begin(self._accept)

    def _begin(self, work, *arguments) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                here, _ = self._server.accept()
                try:
                    there = socket.create_connection(self._to)
                except OSError:  # not yet
                    here.close()
                    continue
                self._begin(self._carry, here, there)
                self._begin(self._carry, there, here)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source, target:
            while content := source.recv(1 << 16):
                self.open.wait()
                target.sendall(content)


def told_to(processes, epoch: int) -> None:
    """Waits until the chief has delivered an epoch."""
    assert any(line.strip() == f"epoch {epoch}" for line in processes[0].stdout)


def cut_cable(directory, epoch: int, seconds: float) -> list[int]:
    with contextlib.ExitStack() as cables:
        laid = {}

        def seen_by(host, addresses):
            for address in addresses:
                if address not in laid:
                    laid[address] = cables.enter_context(Cable(address))
            return [a if i == host else laid[a].address for i, a in enumerate(addresses)]

        processes = start(directory, seen_by=seen_by, **PLATEAU)
        told_to(processes, epoch)
        for cable in laid.values():
            cable.open.clear()
        assert not threading.Event().wait(seconds)  # the hazard itself
        for cable in laid.values():
            cable.open.set()
        return finish(directory, processes, timeout_s=120)


def hold_host(directory, epoch: int, seconds: float, victim: int = 1) -> list[int]:
    processes = start(directory, **PLATEAU)
    told_to(processes, epoch)
    processes[victim].send_signal(signal.SIGSTOP)
    assert not threading.Event().wait(seconds)  # the hazard itself
    processes[victim].send_signal(signal.SIGCONT)
    return finish(directory, processes, timeout_s=120)


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("cut", [cut_cable, hold_host])
def test_ten_seconds_without_each_other_are_outlasted(cut, tmp_path):
    one = run(tmp_path / "one", hosts=1, **PLATEAU)
    codes = cut(tmp_path / "two", 1, CUT_S)
    assert codes == [0, 0], "\n".join(errors(tmp_path / "two", host)[-3000:] for host in (0, 1))
    assert_same_result(tmp_path / "two", one)


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_vanishes_is_given_up_and_the_other_says_so(victim, tmp_path):
    processes = start(tmp_path, **PLATEAU)
    told_to(processes, 1)
    processes[victim].send_signal(signal.SIGSTOP)
    try:
        processes[1 - victim].communicate(timeout=200)
    finally:
        processes[victim].kill()
        processes[victim].communicate(timeout=60)
    assert f"HostLostError: host {1 - victim} cannot go on" in errors(tmp_path, 1 - victim)


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_cuts_at_random_moments_are_outlasted(tmp_path):
    one = run(tmp_path / "one", hosts=1, **PLATEAU)
    rng = random.Random(int(os.environ.get("OVERLAP_TRAIN_SEED", "0")))
    for number in range(int(os.environ.get("OVERLAP_TRAIN_HOST_CUTS", "10"))):
        directory = tmp_path / f"run{number}"
        cut = rng.choice([cut_cable, hold_host])
        codes = cut(directory, rng.randint(0, 5), rng.uniform(1, CUT_S))
        assert codes == [0, 0], errors(directory, 0)[-3000:]
        assert_same_result(directory, one)
        print(f"{number + 1} cuts: all ended as the unbroken one", flush=True)
