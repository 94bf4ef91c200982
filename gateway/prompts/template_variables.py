"""Variables of chat templates, as requests and the operator give them.

It loads no library of templates: `ratoon serve` reads a flag by it before anything else is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MAX_CHARACTERS = 16 << 10  # of all that a request gives: some of it is remembered with its prompt

Scalar = str | int | float | bool | None


def variables_in(spelled: str | None) -> dict[str, Scalar]:
    """Variables for a template, of JSON; msgspec.DecodeError for what is no object of scalars."""
    return {} if spelled is None else msgspec.json.decode(spelled, type=dict[str, Scalar])


def size_of_variables(variables: Mapping[str, Scalar]) -> int:
    """Characters of their names and values."""
    return sum(len(name) + len(str(value)) for name, value in variables.items())
