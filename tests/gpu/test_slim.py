"""What is brought to a GPU machine is small, and what the card needs is in it."""

from __future__ import annotations

import struct
import zipfile

import pytest

from scripts.gpu.slim import blank, lend, slim

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


def test_cuda_13_serves_under_the_names_of_cuda_12(tmp_path):
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "libcublas.so.13").write_text("13")
    for _ in range(2):  # a command may be repeated
        found = lend(tmp_path / "lent", [tmp_path / "none", tmp_path / "cuda"])
    assert found == [tmp_path / "lent", tmp_path / "cuda"]
    assert (tmp_path / "lent" / "libcublas.so.12").read_text() == "13"
    assert not (tmp_path / "lent" / "libcufft.so.11").exists()
