"""What the lock names: checked, looked up among known vulnerabilities, and told as a bill of materials.

    python scripts/supply.py check                 pins, hashes, and what is installed here
    python scripts/supply.py advisories PATH       known vulnerabilities, from OSV files (a .zip or a folder)
    python scripts/supply.py report FILE           what pip-audit told in JSON; 3 if it left out something
    python scripts/supply.py sbom FILE             CycloneDX 1.5

`scripts/audit.sh` runs the first two, `scripts/release.sh` the last.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import importlib.metadata
import io
import json
import re
import sys
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
# What every environment has, whatever the lock says, and the project itself.
UNLOCKED = {"pip", "setuptools", "overlap-train"}
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Pin:
    """One entry of the lock.

    Attributes:
        name: canonical.
        version: the one that is installed.
        marker: where it is installed; everywhere if None.
        hashes: SHA-256 of the files that may be installed, as hexadecimal digits.
        via: what asks for it: canonical names, or "-r requirements.in".
    """

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]
    via: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"

    @property
    def applies(self) -> bool:
        """Whether it is installed in an environment such as this one."""
        return self.marker is None or self.marker.evaluate()


def read_lock(text: str) -> list[Pin]:
    """Returns what a lock pins.

    Raises:
        ValueError: an entry has no exact version, or no hash, or one of another kind.
    """
    pins = []
    for entry in re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"\A(#.*\n)+", "", text).strip()):
        stated, *rest = entry.split(" \\\n") if " \\\n" in entry else entry.split("\n")
        requirement = Requirement(stated.strip())
        specifiers = list(requirement.specifier)
        if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
            raise ValueError(f"{stated.strip()!r} is not pinned to one version")
        hashes = re.findall(r"--hash=(\S+)", "\n".join(rest))
        if not hashes or not all(map(_SHA256.fullmatch, hashes)):
            raise ValueError(f"{requirement.name} has no SHA-256 hash, or another one too")
        _, _, via = entry.partition("# via")
        asks = [line.strip(" #\n") for line in via.split("\n")]
        pins.append(
            Pin(
                canonicalize_name(requirement.name),
                specifiers[0].version,
                requirement.marker,
                tuple(text.removeprefix("sha256:") for text in hashes),
                tuple(name if name.startswith("-r") else canonicalize_name(name) for name in asks if name),
            )
        )
    return pins


def differences(pins: Iterable[Pin], installed: Iterable[importlib.metadata.Distribution]) -> Iterator[str]:
    """Tells in what an environment differs from the lock: versions, and files changed since they came."""
    wanted = {pin.name: pin for pin in pins if pin.applies}
    found = {canonicalize_name(one.metadata["Name"]): one for one in installed}
    for name in sorted(wanted.keys() - found.keys()):
        yield f"{name} is locked and not installed"
    for name in sorted(found.keys() - wanted.keys() - UNLOCKED):
        yield f"{name} is installed and not locked"
    for name in sorted(found.keys() & wanted.keys()):
        if found[name].version != wanted[name].version:
            yield f"{name} is installed as {found[name].version} and locked as {wanted[name].version}"
        yield from changed_files(found[name])


def changed_files(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    """Tells which files are not what the wheel brought, by the digests of its RECORD."""
    record = distribution.read_text("RECORD")
    if record is None:
        yield f"{distribution.metadata['Name']} has no RECORD, so its files cannot be checked"
        return
    for name, digest, *_ in csv.reader(io.StringIO(record)):
        if not digest.startswith("sha256="):
            continue
        path = Path(str(distribution.locate_file(name)))
        try:
            actual = _digest(path)
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror}"
            continue
        if actual != digest.removeprefix("sha256="):
            yield f"{name} is not the file that was installed"


def _digest(path: Path) -> str:
    """Returns the SHA-256 of a file as a RECORD has it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def audited(report: str) -> tuple[list[str], list[str]]:
    """Returns the vulnerabilities in a report of pip-audit, and what it could not look up."""
    try:
        dependencies = json.loads(report)["dependencies"]
    except (ValueError, LookupError):
        return [], ["pip-audit gave no report"]
    found = [
        f"{one['name']} {one['version']}: {vulnerability['id']}, mended in {vulnerability['fix_versions']}"
        for one in dependencies
        for vulnerability in one.get("vulns", ())
    ]
    skipped = [f"{one['name']} was not looked up" for one in dependencies if "skip_reason" in one]
    return found, skipped or ([] if dependencies else ["pip-audit looked nothing up"])


def known_vulnerabilities(pins: Iterable[Pin], advisories: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Tells which pins an advisory in the format of OSV names as affected."""
    locked: dict[str, list[Pin]] = {}
    for pin in pins:
        locked.setdefault(pin.name, []).append(pin)
    for advisory in advisories:
        if advisory.get("withdrawn"):
            continue
        for affected in advisory.get("affected", ()):
            package = affected.get("package", {})
            if package.get("ecosystem") != "PyPI":
                continue
            for pin in locked.get(canonicalize_name(package.get("name", "")), ()):
                if is_affected(pin.version, affected):
                    yield f"{pin.name} {pin.version}: {advisory['id']} {advisory.get('summary', '')}".rstrip()


def is_affected(version: str, affected: dict[str, Any]) -> bool:
    """Whether a version is among those of an entry `affected`; one that cannot be compared counts as such."""
    if version in affected.get("versions", ()):
        return True
    for span in affected.get("ranges", ()):
        if span.get("type") != "ECOSYSTEM":
            continue
        hit = False
        for event in span.get("events", ()):
            ((kind, at),) = event.items()
            try:
                reached = at == "0" or Version(version) >= Version(at)
                beyond = kind == "last_affected" and Version(version) > Version(at)
            except InvalidVersion:
                return True
            if kind == "introduced" and reached:
                hit = True
            elif (kind in ("fixed", "limit") and reached) or beyond:
                hit = False
        if hit:
            return True
    return False


def read_advisories(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the advisories of an archive or a folder of JSON files."""
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield json.loads(file.read_bytes())
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".json")):
            yield json.loads(archive.read(name))


def _led_to(names: Iterable[str], needs: Mapping[str, Iterable[str]]) -> set[str]:
    """Returns the names, what they need, what that needs, and so on."""
    found: set[str] = set()
    waiting: list[str] = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs.get(name, ())
    return found


def bill_of_materials(
    pins: list[Pin], version: str, roots: Iterable[str], licenses: dict[str, str]
) -> dict[str, Any]:
    """Returns what the project is made with, in the format of CycloneDX 1.5.

    Args:
        pins: of the lock.
        version: of the project.
        roots: what the wheel requires; what they lead to has the scope "required", all else "optional".
        licenses: of the pins, where known.
    """
    needs: dict[str, set[str]] = {}
    for pin in pins:
        for by in pin.via:
            needs.setdefault(by, set()).add(pin.name)
    direct = {canonicalize_name(Requirement(root).name) for root in roots}
    required = _led_to(direct, needs)
    purls: dict[str, list[str]] = {}
    for pin in pins:
        purls.setdefault(pin.name, []).append(pin.purl)
    own = f"pkg:pypi/overlap-train@{version}"
    components = [_component(pin, required, licenses) for pin in pins]

    def depends(names: Iterable[str]) -> list[str]:
        return sorted(purl for name in names for purl in purls.get(name, ()))

    content = {
        "components": components,
        "dependencies": [
            {"ref": own, "dependsOn": depends(direct)},
            *({"ref": pin.purl, "dependsOn": depends(needs.get(pin.name, ()))} for pin in pins),
        ],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        # The same for the same content, so that a release can be made again.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + json.dumps(content))}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "overlap_train",
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        **content,
    }


def _component(pin: Pin, required: set[str], licenses: dict[str, str]) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "purl": pin.purl,
        "scope": "required" if pin.name in required else "optional",
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in pin.hashes],
    }
    if pin.marker is not None:
        component["properties"] = [{"name": "python:marker", "value": str(pin.marker)}]
    if pin.name in licenses:
        component["licenses"] = [{"license": {"name": licenses[pin.name]}}]
    return component


def installed_licenses() -> dict[str, str]:
    """Returns what the installed distributions say of their licenses, in one line each."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        metadata = one.metadata.json
        text = metadata.get("license_expression") or metadata.get("license") or ""
        if text and "\n" not in text and len(text) < 100:
            found[canonicalize_name(one.metadata["Name"])] = str(text)
    return found


def _wheel_requires() -> list[str]:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    return settings["options"]["install_requires"].strip().splitlines()


def main(arguments: list[str]) -> int:
    pins = read_lock((ROOT / "requirements.lock").read_text())
    match arguments:
        case ["check"]:
            asked = {canonicalize_name(Requirement(line).name) for line in _wheel_requires()}
            found = [f"{name} is required and not locked" for name in sorted(asked - {p.name for p in pins})]
            found += differences(pins, importlib.metadata.distributions())
            told = f"{len(pins)} pins with {sum(len(pin.hashes) for pin in pins)} hashes; installed as locked"
        case ["advisories", path]:
            advisories = list(read_advisories(Path(path)))
            if not advisories:
                found = [f"{path} holds no advisory"]
            else:
                found = sorted(set(known_vulnerabilities(pins, advisories)))
            told = f"none of {len(advisories)} advisories names one of {len(pins)} pins"
        case ["report", path]:
            found, missing = audited(Path(path).read_text())
            for line in [*found, *missing]:
                print(f"supply: {line}", file=sys.stderr)
            return 1 if found else 3 if missing else 0
        case ["sbom", path]:
            sys.path.insert(0, str(ROOT))
            from overlap_train._support.version import __version__

            bill = bill_of_materials(pins, __version__, _wheel_requires(), installed_licenses())
            Path(path).write_text(json.dumps(bill, indent=1) + "\n")
            found, told = [], f"{path} names {len(bill['components'])} components"
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    for line in found:
        print(f"supply: {line}", file=sys.stderr)
    if not found:
        print(f"supply: {told}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
