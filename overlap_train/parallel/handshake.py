"""Two hosts prove to each other that they know the cluster's key, before anything else is read.

Each sends 32 random bytes, its nonce. Then the one that connected sends HMAC-SHA256 of the key over its role
and both nonces, and after that has been checked the one that listens does. So a peer
without the key learns nothing from the listening host, an answer cannot be used again, and one's own cannot
be sent back. All pieces have a fixed size: 36 bytes, four letters first.

Before that they agree on TLS. By the first byte the host that listens tells whether the other one speaks it;
where only one of them does, both are told.
"""

from __future__ import annotations

import hmac
import secrets
import ssl

from overlap_train.errors import HostMismatchError
from overlap_train.parallel.credentials import KEY_VARIABLE
from overlap_train.parallel.stream import Stream

__all__ = ["Stranger", "accept_tls", "challenge", "prove", "require_tls"]

_NONCE, _PROOF, _NO_KEY, _WRONG_KEY = b"OVA1", b"OVAP", b"OVAN", b"OVAW"
_NO_TLS, _RECORD = b"OVAT", b"\x16"  # the type of the record with which TLS begins
_SIZE = 32
_ON_BOTH = "pass tls_certificate, tls_key and tls_authority on both"
# What a connection that broke raises, behind which the host may answer the next time.
_BROKEN = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_CLIENT, _SERVER = b"overlap_train cluster, 1: who connects", b"overlap_train cluster, 1: who listens"


class Stranger(Exception):
    """Whoever connected is no host of this cluster; the message says why."""


def accept_tls(stream: Stream, context: ssl.SSLContext | None, deadline: float) -> None:
    """Speak TLS with whoever connected if this host does.

    Args:
        stream: newly connected.
        context: of this host; None if it speaks none.
        deadline: for all of it, a time of `time.monotonic()`.

    Raises:
        Stranger: if only one of both speaks it.
        OSError, EOFError: if the peer does not agree in time, or has gone.
    """
    speaks = stream.peek(deadline) == _RECORD
    if speaks and context is not None:
        stream.secure(context, deadline)
    elif speaks:
        raise Stranger(f"the host that connects speaks TLS, and this one does not: {_ON_BOTH}")
    elif context is not None:
        first = bytes(stream.read(len(_NONCE), deadline))
        if first == _NONCE:  # from one that waits for an answer of the same form
            stream.write(_NO_TLS + bytes(_SIZE), deadline)
        raise Stranger(f"the host that connects does not speak TLS, and this one does: {_ON_BOTH}")


def require_tls(stream: Stream, host: str, peer: str, context: ssl.SSLContext, deadline: float) -> None:
    """Speak TLS with a host that listens, and check its certificate.

    Args:
        stream: newly connected.
        host: which the certificate has to name.
        peer: what to call the other one.
        context: of this host.
        deadline: for all of it, a time of `time.monotonic()`.

    Raises:
        HostMismatchError: if the other one speaks none, or has another certificate.
        OSError: if it does not answer in time, or has gone.
    """
    try:
        stream.secure(context, deadline, server_name=host)
    except ssl.SSLCertVerificationError as error:
        raise HostMismatchError(
            f"the certificate of the {peer} is not accepted: {error.verify_message}; it must name {host!r} "
            "and be signed by tls_authority"
        ) from error
    except _BROKEN:
        raise
    except ssl.SSLError as error:
        raise HostMismatchError(
            f"the {peer} does not speak TLS with this host ({error.reason}): {_ON_BOTH}"
        ) from error


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
    if kind == _NO_TLS:
        raise HostMismatchError(f"the {peer} speaks TLS, and this host does not: {_ON_BOTH}")
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
