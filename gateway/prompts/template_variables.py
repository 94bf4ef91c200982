"""Variables of chat templates, as requests and the operator give them.

It loads no library of templates: `ratoon serve` reads a flag by it before anything else is loaded.
"""

from __future__ import annotations

import msgspec

Scalar = str | int | float | bool | None


def variables_in(spelled: str | None) -> dict[str, Scalar]:
    """Variables for a template, of JSON; msgspec.DecodeError for what is no object of scalars."""
    return {} if spelled is None else msgspec.json.decode(spelled, type=dict[str, Scalar])
