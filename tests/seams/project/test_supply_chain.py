"""Installed packages are locked by version and hash, and each lock file uses one index.

`make lock` writes `requirements/`. These tests fail if a dependency is changed only in
pyproject.toml. `make audit` asks a service for known vulnerabilities.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from requirements.scan import AuditedPackages, read

ROOT = Path(__file__).parents[3]
LOCKS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVES = PROJECT["dependencies"]
# dependencies that only the engine's process has
ENGINE = {line for line in (LOCKS / "engine.in").read_text().splitlines() if line[:1] != "#"}
DECLARED = {
    "gateway": [one for one in SERVES if Requirement(one).name not in ENGINE],
    "engine": SERVES,
    "dev": SERVES + PROJECT["optional-dependencies"]["dev"],
}
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def entries(text: str) -> list[str]:
    """Return the entries of a requirements file, each on one line with its hashes."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def locked(name: str) -> dict[str, set[str]]:
    """Return the locked versions of each package: several if they depend on Python's version."""
    found: dict[str, set[str]] = {}
    for entry in entries((LOCKS / f"{name}.txt").read_text()):
        requirement = Requirement(entry.split(" --hash")[0])
        [version] = requirement.specifier
        found.setdefault(requirement.name, set()).add(version.version)
    return found


def not_pinned(text: str) -> list[str]:
    """Return entries that are not pinned to one version by hash, or that name an index."""
    return [e for e in entries(text) if e.startswith("-") or "==" not in e or not _HASH.search(e)]


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
def test_everything_is_locked_by_hash_and_no_lock_names_an_index(path: Path) -> None:
    assert entries(path.read_text())
    assert not_pinned(path.read_text()) == []


def test_control_an_entry_without_a_hash_is_found() -> None:
    hashed = f"good==1 --hash=sha256:{'0' * 64}"
    loose = ["bad==1", "worse>=1", "--extra-index-url https://example.org/simple"]
    assert not_pinned("\n".join([hashed, *loose])) == loose


@pytest.mark.parametrize("name", DECLARED)
def test_what_is_declared_is_locked(name: str) -> None:
    versions = locked(name) | {"torch": locked("torch")["torch"]}
    for declared in map(Requirement, DECLARED[name]):
        found = versions.get(declared.name.lower())
        assert found, f"{declared} is not in requirements/{name}.txt: run `make lock`"
        assert all(version in declared.specifier for version in found), declared


def test_every_image_has_what_was_tested() -> None:
    dev = locked("dev")
    for name in ("gateway", "engine", "build", "uv"):
        assert {package: dev.get(package) for package in locked(name)} == locked(name)
    assert not ENGINE & set(locked("gateway"))
    assert ENGINE - {"torch"} <= set(locked("engine")), "the control: they are in the other image"


def test_torch_for_cpus_is_the_same_version() -> None:
    [version] = locked("torch")["torch"]
    assert locked("torch-cpu") == {"torch": {f"{version}+cpu"}}


def test_images_are_made_from_digests_and_one_index_at_a_time() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^ARG \w+_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    assert len(bases) == 2
    assert all(_DIGEST.search(base) for base in bases)
    named = set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    assert named - stages == {"${PYTHON_IMAGE}", "${REDIS_IMAGE}"}
    for text in (dockerfile, (ROOT / "Makefile").read_text()):
        assert "--extra-index-url" not in text
        installs = [line for line in text.splitlines() if re.search(r"\bpip install\b", line)]
        assert installs
        assert all("-r requirements/" in i or "--no-deps" in i or ":=" in i for i in installs)


def test_the_bill_of_materials_has_all_that_is_locked(tmp_path: Path) -> None:
    text = (LOCKS / "engine.txt").read_text() + (LOCKS / "torch.txt").read_text()
    path = tmp_path / "ratoon.cdx.json"
    command = [
        "-W",
        "ignore",
        "-m",
        "cyclonedx_py",
        "requirements",
        "--no-validate",  # validation takes most of the time, and `make sbom` validates
        "--output-file",
        str(path),
        "-",
    ]
    subprocess.run([sys.executable, *command], input=text, text=True, check=True)
    components = json.loads(path.read_text())["components"]
    listed = {(component["name"], component["version"]) for component in components}
    assert {
        (n, v) for name in ("engine", "torch") for n, vs in locked(name).items() for v in vs
    } == listed


CLEAN = {"name": "a", "version": "1", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "not found"}
FLAWED = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


@pytest.mark.parametrize(
    ("packages", "scan", "is_clean"),
    [
        ([CLEAN, UNKNOWN], AuditedPackages(2, 1, ()), True),
        ([UNKNOWN], AuditedPackages(1, 1, ()), False),
        ([CLEAN, FLAWED], AuditedPackages(2, 0, ("  c 2: CVE-1, mended in 3",)), False),
    ],
)
def test_a_scan_is_clean_only_if_something_is_known(
    packages: list[object], scan: AuditedPackages, is_clean: bool
) -> None:
    found = read(json.dumps({"dependencies": packages, "fixes": []}))
    assert (found, found.is_clean) == (scan, is_clean)
    assert all(line in str(found) for line in scan.found)
