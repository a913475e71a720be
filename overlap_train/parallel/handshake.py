"""Two hosts prove to each other that they know the cluster's key, before anything else is read.

Each sends 32 random bytes, its nonce. Then the one that connected sends HMAC-SHA256 of the key over its role
and both nonces, and after that has been checked the one that listens does. So a peer
without the key learns nothing from the listening host, an answer cannot be used again, and one's own cannot
be sent back. All pieces have a fixed size: 36 bytes, four letters first.
"""

from __future__ import annotations

import hmac
import secrets

from overlap_train.errors import HostMismatchError
from overlap_train.parallel.credentials import KEY_VARIABLE
from overlap_train.parallel.stream import Stream

__all__ = ["Stranger", "challenge", "prove"]

_NONCE, _PROOF, _NO_KEY, _WRONG_KEY = b"OVA1", b"OVAP", b"OVAN", b"OVAW"
_SIZE = 32
_CLIENT, _SERVER = b"overlap_train cluster, 1: who connects", b"overlap_train cluster, 1: who listens"


class Stranger(Exception):
    """Whoever connected is no host of this cluster; the message says why."""


def challenge(stream: Stream, key: bytes | None, deadline: float) -> bool:
    """Let whoever connected prove that it has the key, and prove the same.

    Args:
        stream: newly connected.
        key: this host's; None lets in whoever does not ask for a proof.
        deadline: for all of it, a time of `time.monotonic()`.

    Returns:
        Whether the peer has proved it; False only where this host has no key. Nothing has been read then.

    Raises:
        Stranger: if it has not.
        OSError, EOFError: if it is silent for too long, or has gone.
    """
    first = bytes(stream.read(len(_NONCE), deadline))
    if first != _NONCE:
        stream.unread(first)
        if key is not None:
            raise Stranger(f"the host that connects has no key, and this one has: set {KEY_VARIABLE} on both")
        return False
    theirs = bytes(stream.read(_SIZE, deadline))
    if key is None:
        stream.write(_NO_KEY + bytes(_SIZE), deadline)
        raise Stranger(f"the host that connects has a key, and this one has none: set {KEY_VARIABLE} on both")
    own = secrets.token_bytes(_SIZE)
    stream.write(_NONCE + own, deadline)
    kind, proof = _read_piece(stream, deadline)
    if kind != _PROOF or not hmac.compare_digest(proof, _digest(key, _CLIENT, theirs, own)):
        stream.write(_WRONG_KEY + bytes(_SIZE), deadline)
        raise Stranger("the host that connects has another key")
    stream.write(_PROOF + _digest(key, _SERVER, theirs, own), deadline)
    return True


def prove(stream: Stream, key: bytes, peer: str, deadline: float) -> None:
    """Prove to a host that listens that this one has the key, and have it prove the same.

    Args:
        stream: newly connected.
        key: this host's.
        peer: what to call the other one.
        deadline: for all of it, a time of `time.monotonic()`.

    Raises:
        HostMismatchError: if the other one has no key, or another.
        OSError, EOFError: if it is silent for too long, or has gone.
    """
    own = secrets.token_bytes(_SIZE)
    stream.write(_NONCE + own, deadline)
    kind, theirs = _read_piece(stream, deadline)
    if kind == _NO_KEY:
        raise HostMismatchError(f"the {peer} has no key, and this host has one: set {KEY_VARIABLE} on both")
    if kind != _NONCE:
        raise HostMismatchError(f"the {peer} does not prove that it has the key; is it another program?")
    stream.write(_PROOF + _digest(key, _CLIENT, own, theirs), deadline)
    kind, proof = _read_piece(stream, deadline)
    if kind != _PROOF or not hmac.compare_digest(proof, _digest(key, _SERVER, own, theirs)):
        raise HostMismatchError(f"the {peer} has another key: set {KEY_VARIABLE} to the same on both")


def _read_piece(stream: Stream, deadline: float) -> tuple[bytes, bytes]:
    piece = bytes(stream.read(len(_NONCE) + _SIZE, deadline))
    return piece[: len(_NONCE)], piece[len(_NONCE) :]


def _digest(key: bytes, role: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return HMAC-SHA256; all parts after the role have a fixed size, and no role begins another."""
    return hmac.digest(key, role + client_nonce + server_nonce, "sha256")
