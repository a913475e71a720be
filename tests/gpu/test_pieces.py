"""Gigabytes in pieces: what comes twice, damaged, mixed, late, or from a run that was cut off."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.gpu.pieces import MANIFEST, PieceError, Store, cut, read_manifest

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
    for name in [*reversed(names), names[0]]:
        missing = store.bring(share(pieces, tmp_path / "command", [name]))
    assert missing == []
    code = "import made_up_0, made_up_2; print(made_up_0.VALUE + made_up_2.VALUE)"
    run = [sys.executable, "-c", code]
    site = store.assemble()
    done = subprocess.run(run, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_assembly_with_a_piece_missing_says_which(pieces, tmp_path) -> None:
    store, names = Store(tmp_path / "store"), names_of(pieces)
    store.bring(share(pieces, tmp_path / "command", names[:-1]))
    with pytest.raises(PieceError, match=f"1 pieces are missing, from {names[-1]} on"):
        store.assemble()
    assert not store.site.exists()


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


def test_new_cut_leaves_no_piece_of_the_old_one(pieces, wheels) -> None:
    before = names_of(pieces)
    cut(wheels[1:2], pieces, piece_bytes=PIECE)
    assert sorted(path.name for path in pieces.glob("piece-*")) == names_of(pieces) != before


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


def test_half_a_copy_is_no_piece(pieces, tmp_path, monkeypatch) -> None:
    store, names = Store(tmp_path / "store"), names_of(pieces)

    def half(draft, content):
        draft.write_text(content[: PIECE // 2].decode("latin1"))
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", half)
        with pytest.raises(OSError, match="no space"):
            store.bring(pieces)
    assert store.missing() == names
    assert store.bring(pieces) == []


def test_command_without_the_manifest_says_so(pieces, tmp_path) -> None:
    (pieces / MANIFEST).unlink()
    with pytest.raises(PieceError, match="bring it with every command"):
        Store(tmp_path / "store").bring(pieces)
