"""Which matrices of a quantised checkpoint are plain: `ignore`, `modules_to_not_convert`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.errors import UnsupportedModel

PATTERN = "re:"  # begins a name that is a regular expression


@dataclass(frozen=True, slots=True)
class Ignored:
    """Names of matrices or of what they are in; or patterns, which begin with "re:"."""

    names: tuple[str, ...] = ()

    def covers(self, matrices: Sequence[str]) -> bool:
        """Whether the matrices, which are one here, are plain; raises UnsupportedModel if some."""
        plain = [name for name in matrices if self._has(name)]
        if plain and len(plain) < len(matrices):
            other = next(name for name in matrices if name not in plain)
            raise UnsupportedModel(
                f"quantization_config: {plain[0]} is plain and {other} is not, which are served "
                "as one matrix"
            )
        return bool(plain)

    def _has(self, matrix: str) -> bool:
        return any(matches(name, matrix) for name in self.names)


def matches(name: str, matrix: str) -> bool:
    """Whether `name`, of what is plain, means this matrix or something that it is in."""
    if name.startswith(PATTERN):
        return re.match(name.removeprefix(PATTERN), matrix) is not None
    return matrix == name or matrix.startswith(f"{name}.") or f".{name}." in f".{matrix}."


NOTHING = Ignored()
