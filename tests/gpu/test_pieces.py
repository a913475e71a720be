"""Gigabytes in pieces: what comes twice, damaged, mixed, late, or from a run that was cut off."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.gpu.pieces import MANIFEST, PieceError, Store, blank, cut, lend, read_manifest, slim

ROOT = Path(__file__).parents[2]
PIECE = 1000


@pytest.fixture
def wheels(tmp_path) -> list[Path]:
    folder = tmp_path / "wheels"
    folder.mkdir()
    made = []
    for number, size in enumerate((2500, 1, 1700)):
        path = folder / f"made_up_{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"made_up_{number}/__init__.py", f"VALUE = {number}\n" + "#" * size)
        made.append(path)
    return made


@pytest.fixture
def pieces(wheels, tmp_path) -> Path:
    cut(wheels, tmp_path / "cut", piece_bytes=PIECE)
    return tmp_path / "cut"


def share(pieces: Path, folder: Path, names: list[str]) -> Path:
    """What one command brings: the manifest and some of the pieces."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in [MANIFEST, *names]:
        shutil.copy(pieces / name, folder / name)
    return folder


def names_of(pieces: Path) -> list[str]:
    return list(read_manifest(pieces / MANIFEST))


def test_pieces_in_any_order_and_twice_make_the_wheels(pieces, tmp_path) -> None:
    store, names = Store(tmp_path / "store"), names_of(pieces)
    for name in [*reversed(names[:-1]), names[0]]:
        missing = store.bring(share(pieces, tmp_path / "command", [name]))
    assert missing == names[-1:]
    with pytest.raises(PieceError, match=f"1 pieces are missing, from {names[-1]} on"):
        store.assemble()
    assert not store.site.exists()
    assert store.bring(pieces) == []
    code = "import made_up_0, made_up_2; print(made_up_0.VALUE + made_up_2.VALUE)"
    run = [sys.executable, "-c", code]
    site = store.assemble()
    done = subprocess.run(run, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_assembled_once_and_pieces_that_come_later_change_nothing(pieces, tmp_path) -> None:
    store = Store(tmp_path / "store")
    store.bring(pieces)
    marker = store.assemble() / "made_up_0" / "marker"
    marker.write_text("unpacked anew, this would be gone")
    assert store.bring(pieces) == []
    assert Store(tmp_path / "store").assemble() == store.site
    assert marker.exists()
    assert not list((tmp_path / "store").glob("piece-*"))


def test_assembly_that_was_cut_off_is_done_again(pieces, tmp_path, monkeypatch) -> None:
    store = Store(tmp_path / "store")
    store.bring(pieces)
    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extractall", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.assemble()
    assert not store.site.exists()
    assert (store.assemble() / "made_up_1" / "__init__.py").exists()


def test_pieces_of_two_cuts_are_not_mixed(pieces, wheels, tmp_path) -> None:
    store = Store(tmp_path / "store")
    store.bring(share(pieces, tmp_path / "command", names_of(pieces)[:1]))
    cut(wheels[:1], tmp_path / "other", piece_bytes=PIECE)
    with pytest.raises(PieceError, match="holds pieces of another manifest"):
        store.bring(tmp_path / "other")
    before = names_of(pieces)
    cut(wheels[1:2], pieces, piece_bytes=PIECE)  # which leaves none of the old ones
    assert sorted(path.name for path in pieces.glob("piece-*")) == names_of(pieces) != before
    (pieces / MANIFEST).unlink()
    with pytest.raises(PieceError, match="bring it with every command"):
        Store(tmp_path / "another").bring(pieces)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "..", ""])
def test_manifest_cannot_name_a_file_outside(pieces, tmp_path, name) -> None:
    document = json.loads((pieces / MANIFEST).read_text())
    (pieces / MANIFEST).write_text(json.dumps(document | {name: "0"}))
    with pytest.raises(PieceError, match="which is no piece"):
        Store(tmp_path / "store").bring(pieces)


def test_the_command_brings_in_several_calls_and_refuses_what_is_damaged(pieces, tmp_path) -> None:
    names, store = names_of(pieces), str(tmp_path / "store")
    damaged = share(pieces, tmp_path / "damaged", names[:2])
    (damaged / names[0]).write_bytes(b"damaged on the way")

    def bring(folder: Path) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "scripts.gpu.tensorflow_runs",
            "bring",
            str(folder),
            "--store",
            store,
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout + done.stderr

    assert bring(damaged) == (1, f"damaged on the way: {names[0]}; bring them again\n")
    missing = " ".join([names[0], *names[3:]])
    assert bring(share(pieces, tmp_path / "some", names[2:3])) == (0, f"still missing: {missing}\n")
    assert bring(pieces) == (0, "all pieces are here\n")


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


def test_cuda_13_serves_under_the_names_of_cuda_12(tmp_path):
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "libcublas.so.13").write_text("13")
    for _ in range(2):  # a command may be repeated
        found = lend(tmp_path / "lent", [tmp_path / "none", tmp_path / "cuda"])
    assert found == [tmp_path / "lent", tmp_path / "cuda"]
    assert (tmp_path / "lent" / "libcublas.so.12").read_text() == "13"
    assert not (tmp_path / "lent" / "libcufft.so.11").exists()
