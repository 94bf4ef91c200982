"""The operator's chat settings, among them variables of the chat template.

Requests may set these variables too.

This module loads no template library, because `ratoon serve` uses it to read a flag at its start.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

# maximum characters of a request's variables, some of which are remembered
MAX_CHARACTERS = 16 << 10
# The variable by which some templates keep thoughts. For other templates, the gateway keeps
# thoughts if it has the generated turns.
PRESERVE_THINKING = "preserve_thinking"

Scalar = str | int | float | bool | None


class ChatSettings(NamedTuple):
    """The operator's settings of chats. None stands for the model's own setting."""

    template: str | None = None
    variables: str | None = None  # JSON of an object of variables
    tool_format: str | None = None


def variables_in(spelled: str | None) -> dict[str, Scalar]:
    """Read a template's variables from JSON; raise DecodeError if it is no object of scalars."""
    return {} if spelled is None else msgspec.json.decode(spelled, type=dict[str, Scalar])


def size_of_variables(variables: Mapping[str, Scalar]) -> int:
    """Count the characters of variables' names and values."""
    return sum(len(name) + len(str(value)) for name, value in variables.items())
