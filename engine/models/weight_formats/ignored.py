"""The fields for unquantised matrices in a checkpoint: `ignore`, `modules_to_not_convert`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.models.errors import BadConfig, UnsupportedModel

PATTERN = "re:"


@dataclass(frozen=True, slots=True)
class Ignored:
    """The unquantised matrices, given by name, by a parent module's name, or by a pattern "re:...".

    `read_ignored` makes an `Ignored` from a file's list.
    """

    names: tuple[str, ...] = ()
    # Pairs of (prefix in the files, decoder's prefix), as in `CheckpointNames`.
    prefixes: tuple[tuple[str, str], ...] = ()

    def covers(self, matrices: Sequence[str]) -> bool:
        """Return whether the joined `matrices` are unquantised.

        Raises UnsupportedModel if only some of them are.
        """
        plain = [name for name in matrices if self._has(name)]
        if plain and len(plain) < len(matrices):
            other = next(name for name in matrices if name not in plain)
            raise UnsupportedModel(
                f"quantization_config: {plain[0]} is plain and {other} is not, which are served "
                "as one matrix"
            )
        return bool(plain)

    def _has(self, matrix: str) -> bool:
        return any(matches(name, one) for one in self._spellings(matrix) for name in self.names)

    def _spellings(self, matrix: str) -> Iterator[str]:
        yield matrix
        for stored, own in self.prefixes:
            if matrix.startswith(own):
                yield stored + matrix.removeprefix(own)


def read_ignored(field: str, names: Iterable[str]) -> Ignored:
    """Read the list in a field of `quantization_config`. Raises BadConfig for invalid patterns."""
    listed = tuple(names)
    for name in listed:
        if name.startswith(PATTERN):
            check_pattern(field, name.removeprefix(PATTERN))
    return Ignored(listed)


def check_pattern(field: str, pattern: str) -> None:
    """Raise BadConfig, which names the field, for an invalid regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadConfig(f"quantization_config.{field} {pattern!r}: {error}") from error


def matches(name: str, matrix: str) -> bool:
    """Return whether the unquantised module `name` is this matrix or contains it."""
    if name.startswith(PATTERN):
        return re.match(name.removeprefix(PATTERN), matrix) is not None
    return matrix == name or matrix.startswith(f"{name}.") or f".{name}." in f".{matrix}."


NOTHING = Ignored()
