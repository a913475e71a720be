"""The key and the files for TLS: what others could have read, or what is none, is refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from overlap_train.parallel.credentials import Credentials, read_credentials

from overlap_train.errors import ClusterConfigError

KEY = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    monkeypatch.delenv("OVERLAP_TRAIN_CLUSTER_KEY", raising=False)
    monkeypatch.delenv("OVERLAP_TRAIN_CLUSTER_KEY_FILE", raising=False)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return path


def make_certificate(directory, name="DNS:localhost"):
    """Returns a certificate that is its own authority, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the command openssl, to make a certificate")
    certificate, key = directory / "certificate.pem", directory / "certificate.key"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=evaluator"]
    subprocess.run([*command, "-addext", f"subjectAltName={name}"], check=True, capture_output=True)
    key.chmod(0o600)
    return certificate, key


def test_without_a_key_there_is_none():
    assert read_credentials() == Credentials()


def test_the_key_comes_from_the_environment_or_a_file(key_file, monkeypatch):
    monkeypatch.setenv("OVERLAP_TRAIN_CLUSTER_KEY_FILE", str(key_file))
    assert read_credentials().key == KEY.encode()
    monkeypatch.delenv("OVERLAP_TRAIN_CLUSTER_KEY_FILE")
    monkeypatch.setenv("OVERLAP_TRAIN_CLUSTER_KEY", "x" * 16)
    assert read_credentials().key == b"x" * 16
    assert read_credentials(key_file=key_file).key == KEY.encode(), "an argument wins"


def test_the_key_is_in_no_message(key_file):
    assert KEY not in repr(read_credentials(key_file=key_file))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606, 0o620, 0o700, 0o4600])
def test_a_key_that_others_may_have_read_or_changed_is_refused(mode, key_file):
    key_file.chmod(mode)
    with pytest.raises(ClusterConfigError, match=f"key_file must have the mode 0600.* has {mode:04o}"):
        read_credentials(key_file=key_file)


def test_a_key_that_its_owner_can_only_read_is_taken(key_file):
    key_file.chmod(0o400)
    assert read_credentials(key_file=str(key_file)).key == KEY.encode()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_a_key_of_another_user_is_refused(key_file):
    os.chown(key_file, 12345, 12345)
    with pytest.raises(ClusterConfigError, match="must belong to the user who runs this"):
        read_credentials(key_file=key_file)


def test_a_pipe_or_a_directory_does_not_hold_the_program_up(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ClusterConfigError, match="key_file"):
            read_credentials(key_file=path)


@pytest.mark.parametrize("content", ["", "\n", "short", "x" * 15 + "\n", "x" * 70_000])
def test_what_is_no_key_is_refused(content, key_file, monkeypatch):
    key_file.write_text(content)
    with pytest.raises(ClusterConfigError, match=r"key_file must have at (least|most)"):
        read_credentials(key_file=key_file)
    monkeypatch.setenv("OVERLAP_TRAIN_CLUSTER_KEY", content[:15])
    with pytest.raises(ClusterConfigError, match="OVERLAP_TRAIN_CLUSTER_KEY must have at least 16"):
        read_credentials()


def test_two_sources_of_a_key_are_refused(key_file, monkeypatch):
    monkeypatch.setenv("OVERLAP_TRAIN_CLUSTER_KEY", KEY)
    monkeypatch.setenv("OVERLAP_TRAIN_CLUSTER_KEY_FILE", str(key_file))
    with pytest.raises(ClusterConfigError, match="are both set"):
        read_credentials()


class Place:
    """Says where it is, or raises that it cannot."""

    def __init__(self, where):
        self.where = where

    def __fspath__(self):
        if isinstance(self.where, Exception):
            raise self.where
        return self.where


@pytest.mark.parametrize("name", ["key_file", "tls_certificate"])
@pytest.mark.parametrize("value", [1, b"", True, object(), Place(b"bytes"), Place(OSError("nowhere"))])
def test_what_is_no_path_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a path"):
        read_credentials(**{name: value})


@pytest.mark.parametrize("value", ["", "/no/such/file", "a\0b"])
def test_a_file_that_is_not_there_is_named(value, monkeypatch):
    with pytest.raises(ClusterConfigError, match="key_file"):
        read_credentials(key_file=value)


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_whether_strangers_are_let_in_is_true_or_false(value):
    with pytest.raises(TypeError, match="allow_unauthenticated must be True or False"):
        read_credentials(allow_unauthenticated=value)


def test_other_machines_need_a_key_or_leave():
    with pytest.raises(ClusterConfigError, match=r"no key, and c:1 is not .* OVERLAP_TRAIN_CLUSTER_KEY"):
        Credentials().check_place("c:1", loopback=False)
    for credentials in (Credentials(key=b"x"), Credentials(allow_unauthenticated=True)):
        credentials.check_place("c:1", loopback=False)
    Credentials().check_place("localhost:1", loopback=True)


def test_tls_needs_all_its_files():
    with pytest.raises(ClusterConfigError, match="tls_key, tls_authority is missing"):
        read_credentials(tls_certificate="a.pem")


def test_files_for_tls_that_cannot_be_used_are_named(tmp_path):
    certificate, key = make_certificate(tmp_path)
    tls = read_credentials(tls_certificate=certificate, tls_key=key, tls_authority=certificate).tls
    tls.server_context()
    tls.client_context()
    key.chmod(0o644)
    with pytest.raises(ClusterConfigError, match="tls_key must have the mode 0600"):
        tls.server_context()
    key.chmod(0o600)
    certificate.write_text("nonsense")
    with pytest.raises(ClusterConfigError, match="tls_certificate and tls_key cannot be used"):
        tls.server_context()
    with pytest.raises(ClusterConfigError, match="tls_authority cannot be used"):
        tls.client_context()


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
def test_a_certificate_that_is_no_file_does_not_hold_the_program_up(tmp_path, put, key_file):
    put(tmp_path / "certificate.pem")
    link = tmp_path / "link.pem"
    link.symlink_to("certificate.pem")
    tls = read_credentials(tls_certificate=link, tls_key=key_file, tls_authority=link).tls
    with pytest.raises(ClusterConfigError, match="tls_certificate must be a regular file"):
        tls.server_context()
    with pytest.raises(ClusterConfigError, match="tls_authority must be a regular file"):
        tls.client_context()
