"""Gigabytes in pieces: what comes twice, damaged, mixed, late, or from a run that was cut off."""

import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.gpu.slim import blank, slim

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_tensorflow.sh"


@pytest.fixture
def run(tmp_path):
    """Runs the script; returns its status and what it has said."""
    own = {"OVERLAP_TRAIN_STORE": str(tmp_path / "store"), "PIECE_BYTES": "3000", "PYTHON": sys.executable}

    def call(*arguments):
        done = subprocess.run(
            [SCRIPT, *arguments], env=os.environ | own, capture_output=True, text=True, timeout=60
        )
        return done.returncode, (done.stdout + done.stderr).strip()

    return call


@pytest.fixture
def pieces(run, tmp_path):
    (tmp_path / "wheels").mkdir()
    for number, size in enumerate((2500, 1, 1700)):
        path = tmp_path / "wheels" / f"made_up_{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"made_up_{number}/__init__.py", f"VALUE = {number}\n" + "#" * size)
    assert run("cut", tmp_path / "wheels", tmp_path / "cut")[0] == 0
    return sorted((tmp_path / "cut").glob("piece-*"))


def share(pieces, folder):
    """What one command brings: the manifest and some of the pieces."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in (pieces[0].parent / "manifest", *pieces):
        shutil.copy(path, folder)
    return folder


def test_pieces_in_any_order_and_twice_make_the_wheels(run, pieces, tmp_path):
    first, *others, last = pieces
    assert others
    for piece in (*reversed(others), first, first):
        status, said = run("bring", share([piece], tmp_path / "command"))
        assert status == 0
    assert said == f"still missing: {last.name}"
    assert run("run")[0] == 1
    # A copy that was cut off is no piece, and half of what was unpacked is no site.
    (tmp_path / "store" / "draft").write_bytes(last.read_bytes()[:9])
    (tmp_path / "store" / "unpacked").mkdir()
    for _ in range(2):
        assert run("bring", share(pieces, tmp_path / "command")) == (0, "all pieces are here")
    code = "import made_up_0, made_up_2; print(made_up_0.VALUE + made_up_2.VALUE)"
    environment = {"PYTHONPATH": str(tmp_path / "store" / "site")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "2\n"
    assert not list((tmp_path / "store").glob("piece-*"))


def test_what_is_damaged_or_of_another_cut_is_refused(run, pieces, tmp_path):
    folder = share(pieces[:2], tmp_path / "command")
    (folder / pieces[0].name).write_bytes(b"damaged on the way")
    assert run("bring", folder) == (1, f"damaged on the way: {pieces[0].name}; bring them again")
    missing = " ".join(piece.name for piece in (pieces[0], *pieces[2:]))
    assert run("bring", share(pieces[1:2], folder)) == (0, f"still missing: {missing}")
    next((tmp_path / "wheels").iterdir()).unlink()
    assert run("cut", tmp_path / "wheels", tmp_path / "cut")[0] == 0
    status, said = run("bring", tmp_path / "cut")
    assert (status, "holds pieces of another manifest" in said) == (1, True)
    assert run("bring", tmp_path)[1].endswith("bring it with every command")


# What another card needs is left out.


PTX, MACHINE_CODE = 1, 2


def fat_binary(*entries):
    """Return a fat binary, and where the payload of each (kind, generation) begins in it."""
    body = b"".join(
        struct.pack("<HHIQIIHHI", kind, 1, 64, 24, 0, 0, 0, 0, generation).ljust(64, b"h") + b"code" * 6
        for kind, generation in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def payloads(library, count):
    """Return the payloads of the only fat binary in a library, which begins at byte 5."""
    return [bytes(library[5 + 16 + 64 + 88 * i :][:24]) for i in range(count)]


WHOLE, BLANK = b"code" * 6, bytes(24)


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        ([(MACHINE_CODE, 80), (MACHINE_CODE, 90), (PTX, 90)], [False, True, False]),
        ([(MACHINE_CODE, 80), (PTX, 90)], [False, True]),
        ([(MACHINE_CODE, 75), (MACHINE_CODE, 80)], [True, True]),
        ([(MACHINE_CODE, 90)], [True]),
    ],
    ids=["machine code before PTX", "only PTX", "nothing for this card", "only this card"],
)
def test_what_another_card_needs_becomes_zeros(entries, kept):
    library = bytearray(b"front" + fat_binary(*entries) + b"back")
    before = len(library)
    assert blank(library, 90) == 24 * kept.count(False)
    assert payloads(library, len(entries)) == [WHOLE if keep else BLANK for keep in kept]
    assert len(library) == before
    assert library.startswith(b"front")
    assert library.endswith(b"back")


@pytest.mark.parametrize("cut", [4, 15, 40, 100])
def test_bytes_that_only_look_like_one_stay(cut):
    whole = fat_binary((MACHINE_CODE, 80), (MACHINE_CODE, 90))
    library = bytearray(b"front" + whole[:cut])
    assert blank(library, 90) == 0
    assert library == b"front" + whole[:cut]


def test_wheels_are_packed_without_headers_and_tests(tmp_path):
    big = b"x" * (1 << 20) + fat_binary((MACHINE_CODE, 80), (MACHINE_CODE, 90))
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "made_up-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("made_up/library.so", big)
        wheel.writestr("made_up/__init__.py", "VALUE = 1")
        wheel.writestr("made_up/tests/test_it.py", "")
        wheel.writestr("tensorflow/include/it.h", "")
    slim(tmp_path / "wheels", tmp_path / "small", generation=90)
    with zipfile.ZipFile(tmp_path / "small" / "made_up-1.0-py3-none-any.whl") as wheel:
        assert sorted(wheel.namelist()) == ["made_up/__init__.py", "made_up/library.so"]
        assert wheel.read("made_up/__init__.py") == b"VALUE = 1"
        assert wheel.read("made_up/library.so").count(WHOLE) == 1
    assert [path.suffix for path in (tmp_path / "small").iterdir()] == [".whl"]
