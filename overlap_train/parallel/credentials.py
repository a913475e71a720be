"""What the hosts of a cluster know each other by: the shared key, and the files for TLS."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path

from overlap_train._support.arguments import require_path, shown
from overlap_train._support.files import IrregularFileError, open_regular
from overlap_train.errors import ClusterConfigError

__all__ = ["KEY_VARIABLE", "Credentials", "TLSFiles", "read_credentials"]

KEY_VARIABLE = "OVERLAP_TRAIN_CLUSTER_KEY"
_FILE_VARIABLE = "OVERLAP_TRAIN_CLUSTER_KEY_FILE"
_SHORTEST, _LONGEST_FILE = 16, 65_536
_ADVICE = (
    f"set {KEY_VARIABLE} to the same secret on all hosts, such as one of `openssl rand -hex 32`, or pass "
    "join_cluster(key_file=...); on a network where you trust every program, "
    "join_cluster(allow_unauthenticated=True)"
)


@dataclass(frozen=True)
class TLSFiles:
    """The files for TLS, in PEM.

    Attributes:
        certificate: the evaluator's, with the name or IP address of its task in `TF_CONFIG`.
        key: the private key of that certificate, which only the evaluator reads.
        authority: the certificates by which the chief judges the evaluator's.
    """

    certificate: Path
    key: Path
    authority: Path

    def server_context(self) -> ssl.SSLContext:
        """Return what the evaluator speaks TLS with.

        Raises:
            ClusterConfigError: if a file cannot be used.
        """
        _read_private(self.key, "tls_key")
        os.close(_opened(self.certificate, "tls_certificate"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
        except (OSError, ValueError) as error:
            raise ClusterConfigError(
                f"tls_certificate and tls_key cannot be used: {error}; got {str(self.certificate)!r} and "
                f"{str(self.key)!r}, expected a certificate and its private key, unencrypted, in PEM"
            ) from error
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return what the chief speaks TLS with.

        Raises:
            ClusterConfigError: if the file cannot be used.
        """
        os.close(_opened(self.authority, "tls_authority"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.authority)
        except (OSError, ValueError) as error:
            raise ClusterConfigError(
                f"tls_authority cannot be used: {error}; got {str(self.authority)!r}, expected certificates "
                "in PEM"
            ) from error
        return context


@dataclass(frozen=True)
class Credentials:
    """How a host proves itself, and what it demands of others.

    Attributes:
        key: the secret that all hosts share; None means that there is none.
        allow_unauthenticated: whether peers on other machines are let in without a key.
        tls: the files for TLS; None means no encryption.
    """

    key: bytes | None = field(default=None, repr=False)
    allow_unauthenticated: bool = False
    tls: TLSFiles | None = None

    def check_place(self, place: str, *, loopback: bool) -> None:
        """Make sure that a connection at a place is authenticated, or needs not be.

        Raises:
            ClusterConfigError: if there is no key, and others than this machine's programs can connect.
        """
        if self.key is None and not loopback and not self.allow_unauthenticated:
            raise ClusterConfigError(
                f"there is no key, and {place} is not a loopback address: any host could send weights to the "
                f"evaluator or pass for it; {_ADVICE}"
            )


def read_credentials(
    *,
    key_file: object = None,
    allow_unauthenticated: object = False,
    tls_certificate: object = None,
    tls_key: object = None,
    tls_authority: object = None,
) -> Credentials:
    """Return the credentials that arguments and the environment name; a file given wins.

    Args:
        key_file: holds the key; None reads `OVERLAP_TRAIN_CLUSTER_KEY`, which is the key itself, or
            `OVERLAP_TRAIN_CLUSTER_KEY_FILE`, which names a file.
        allow_unauthenticated: whether other machines are let in without a key.
        tls_certificate: of the evaluator, in PEM; all three files, or none.
        tls_key: of that certificate.
        tls_authority: the certificates by which the evaluator's is judged.

    Raises:
        TypeError: if an argument has the wrong type.
        ClusterConfigError: a ValueError, if a key or a file cannot be used.
    """
    if not isinstance(allow_unauthenticated, bool):
        raise TypeError(f"allow_unauthenticated must be True or False; got {shown(allow_unauthenticated)}")
    given = {"tls_certificate": tls_certificate, "tls_key": tls_key, "tls_authority": tls_authority}
    files = [_path(name, value) for name, value in given.items() if value is not None]
    if files and len(files) < len(given):
        missing = ", ".join(name for name, value in given.items() if value is None)
        raise ClusterConfigError(f"TLS needs all of {', '.join(given)}; {missing} is missing")
    return Credentials(
        _read_key(None if key_file is None else _path("key_file", key_file)),
        allow_unauthenticated,
        TLSFiles(*files) if files else None,
    )


def _read_key(key_file: Path | None) -> bytes | None:
    """Return the key of a file, or of the environment; None if neither names one."""
    named, name = key_file, "key_file"
    if named is None and _FILE_VARIABLE in os.environ:
        if KEY_VARIABLE in os.environ:
            raise ClusterConfigError(f"{KEY_VARIABLE} and {_FILE_VARIABLE} are both set; unset one of them")
        named, name = _path(_FILE_VARIABLE, os.environ[_FILE_VARIABLE]), _FILE_VARIABLE
    if named is not None:
        key = _read_private(named, name).strip()
    elif KEY_VARIABLE in os.environ:
        key, name = os.environb[KEY_VARIABLE.encode()].strip(), KEY_VARIABLE
    else:
        return None
    if len(key) < _SHORTEST:
        raise ClusterConfigError(
            f"the key of {name} must have at least {_SHORTEST} characters; got {len(key)}; make one with "
            "`openssl rand -hex 32`"
        )
    return key


def _read_private(path: Path, name: str) -> bytes:
    """Return the content of a small file that no other user can read or change."""
    descriptor = _opened(path, name)
    try:
        _check_private(os.fstat(descriptor), path, name)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(_LONGEST_FILE + 1)
    finally:
        os.close(descriptor)
    if len(content) > _LONGEST_FILE:
        raise ClusterConfigError(f"{name} must have at most {_LONGEST_FILE} bytes; {str(path)!r} has more")
    return content


def _opened(path: Path, name: str) -> int:
    """Return the descriptor of a regular file that can be read: OpenSSL would wait for a pipe's other end."""
    try:
        return open_regular(path, os.O_RDONLY, follow_links=True)
    except IrregularFileError as error:
        raise ClusterConfigError(f"{name} must be a regular file; {str(path)!r} is not: {error}") from error
    except (OSError, ValueError) as error:
        raise ClusterConfigError(f"{name} cannot be read: {error}") from error


def _check_private(found: os.stat_result, path: Path, name: str) -> None:
    """Raise ClusterConfigError unless a file is one that only this user can read and change."""
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~(stat.S_IRUSR | stat.S_IWUSR):
        raise ClusterConfigError(
            f"{name} must have the mode 0600, so that no other user reads it; {str(path)!r} has "
            f"{mode:04o}: chmod 600 {str(path)!r}, and make a new key if others may have read it"
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise ClusterConfigError(
            f"{name} must belong to the user who runs this; {str(path)!r} belongs to user {found.st_uid}"
        )


def _path(name: str, value: object) -> Path:
    try:
        return require_path(name, value)
    except ValueError as error:
        raise ClusterConfigError(str(error)) from None


def _refuse_password() -> str:
    """Stand for the prompt with which OpenSSL would hold the program up."""
    raise ValueError("the private key is encrypted")
