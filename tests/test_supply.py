"""What the lock names is pinned, hashed, installed as it came, and told in the bill of materials."""

from __future__ import annotations

import importlib.metadata
import json
import zipfile
from pathlib import Path

import pytest

from scripts import supply

LOCK = (supply.ROOT / "requirements.lock").read_text()
HASH = "--hash=sha256:" + "0" * 64
ENTRY = f"one==1.2 ; python_version >= '3' \\\n    {HASH} \\\n    {HASH}\n    # via\n"
ENTRY += "    #   -r a.in\n    #   two\n"
ADVISORY = {
    "id": "PYSEC-1",
    "summary": "it is open",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "One"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.3"}]}],
        }
    ],
}


def test_an_entry_is_read_whole():
    (pin,) = supply.read_lock(f"# made by\n# a script\n{ENTRY}")
    assert (pin.name, pin.version, pin.applies, len(pin.hashes)) == ("one", "1.2", True, 2)
    assert pin.via == ("-r a.in", "two")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (f"one>=1.2 \\\n    {HASH}\n", "not pinned"),
        (f"one==1.* \\\n    {HASH}\n", "not pinned"),
        ("one==1.2\n", "no SHA-256 hash"),
        ("one==1.2 \\\n    --hash=md5:0\n", "no SHA-256 hash"),
    ],
)
def test_what_is_not_pinned_and_hashed_is_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        supply.read_lock(ENTRY + entry)


def test_all_of_the_lock_is_pinned_and_hashed_and_holds_what_the_wheel_requires():
    names = {pin.name for pin in supply.read_lock(LOCK)}
    assert len(names) > 50
    assert {supply.canonicalize_name(supply.Requirement(r).name) for r in supply._wheel_requires()} <= names
    assert LOCK.count("--hash=") == sum(len(pin.hashes) for pin in supply.read_lock(LOCK))


def installed(directory: Path, record: str) -> importlib.metadata.Distribution:
    info = directory / "one-1.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one\nVersion: 1.1\n")
    (info / "RECORD").write_text(record)
    return importlib.metadata.PathDistribution(info)


def test_another_version_a_changed_file_and_what_is_missing_are_told(tmp_path):
    (tmp_path / "whole.py").write_text("a = 1\n")
    (tmp_path / "changed.py").write_text("a = 1\n")
    digest = supply._digest(tmp_path / "whole.py")
    (tmp_path / "changed.py").write_text("a = 2\n")
    record = f"whole.py,sha256={digest},6\nchanged.py,sha256={digest},6\ngone.py,sha256={digest},6\n"
    pins = supply.read_lock(ENTRY + ENTRY.replace("one", "two"))
    told = list(supply.differences(pins, [installed(tmp_path, record)]))
    assert told == [
        "two is locked and not installed",
        "one is installed as 1.1 and locked as 1.2",
        "changed.py is not the file that was installed",
        "gone.py cannot be read: No such file or directory",
    ]


@pytest.mark.parametrize(
    ("version", "events", "affected"),
    [
        ("1.2", [{"introduced": "0"}, {"fixed": "1.3"}], True),
        ("1.3", [{"introduced": "0"}, {"fixed": "1.3"}], False),
        ("1.10", [{"introduced": "1.9"}], True),
        ("1.2", [{"introduced": "1.9"}], False),
        ("1.2", [{"introduced": "0"}, {"last_affected": "1.2"}], True),
        ("1.2.1", [{"introduced": "0"}, {"last_affected": "1.2"}], False),
        ("2.5", [{"introduced": "0"}, {"fixed": "1.3"}, {"introduced": "2.0"}, {"fixed": "2.6"}], True),
        ("what", [{"introduced": "1"}], True),
    ],
)
def test_an_advisory_names_the_versions_between_its_events(version, events, affected):
    assert supply.is_affected(version, {"ranges": [{"type": "ECOSYSTEM", "events": events}]}) is affected


def test_advisories_are_read_from_a_folder_and_an_archive(tmp_path):
    folder = tmp_path / "osv"
    folder.mkdir()
    withdrawn = {**ADVISORY, "id": "PYSEC-2", "withdrawn": "2026-01-01T00:00:00Z"}
    for number, advisory in enumerate((ADVISORY, withdrawn)):
        (folder / f"{number}.json").write_text(json.dumps(advisory))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    pins = supply.read_lock(ENTRY)
    for path in (folder, tmp_path / "all.zip"):
        assert list(supply.known_vulnerabilities(pins, supply.read_advisories(path))) == [
            "one 1.2: PYSEC-1 it is open"
        ]


def test_what_pip_audit_left_out_is_no_all_clear():
    skipped = {"name": "one", "skip_reason": "not found"}
    sound = {"name": "one", "version": "1", "vulns": []}
    bad = {"name": "two", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    report = json.dumps({"dependencies": [skipped, sound, bad]})
    assert supply.audited(report) == (["two 1: PYSEC-1, mended in ['2']"], ["one was not looked up"])
    assert supply.audited(json.dumps({"dependencies": [sound]})) == ([], [])
    assert supply.audited("") == ([], ["pip-audit gave no report"])


def test_the_bill_names_every_pin_and_what_it_needs():
    pins = supply.read_lock(LOCK)
    bill = supply.bill_of_materials(pins, "1.0", ["tensorflow>=2"], {"tensorflow": "Apache 2.0"})
    assert json.loads(json.dumps(bill)) == bill
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    components = {component["bom-ref"]: component for component in bill["components"]}
    assert components.keys() == {pin.purl for pin in pins}
    scope = {component["name"]: component["scope"] for component in bill["components"]}
    assert (scope["tensorflow"], scope["protobuf"], scope["pytest"]) == ("required", "required", "optional")
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert set().union(*needs.values()) <= components.keys()
    tensorflow = next(ref for ref in components if ref.startswith("pkg:pypi/tensorflow@"))
    assert tensorflow in needs["pkg:pypi/overlap-train@1.0"]
    assert any(ref.startswith("pkg:pypi/protobuf@") for ref in needs[tensorflow])
    assert bill == supply.bill_of_materials(pins, "1.0", ["tensorflow>=2"], {"tensorflow": "Apache 2.0"})
