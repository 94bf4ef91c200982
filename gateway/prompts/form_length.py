"""The limit on the length of grammars and schemas, checked before they are processed.

A grammar is written before it is sent to the engine, and each choice has a copy. The gateway
therefore refuses a long grammar before the engine could.
"""

from gateway.errors import BadRequest
from gateway.turn_formats.grammar import MAX_CHARS


def bounded(param: str, text: str) -> str:
    """Return `text` of the field `param`; raise BadRequest if the text is too long."""
    check_length(f"`{param}`", len(text), param)
    return text


def check_length(what: str, characters: int, param: str | None) -> None:
    """Raise BadRequest for more than MAX_CHARS characters."""
    if characters > MAX_CHARS:
        message = f"{what} has more than {MAX_CHARS} characters"
        raise BadRequest(message, code="invalid_grammar", param=param)
