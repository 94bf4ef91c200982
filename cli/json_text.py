"""JSON that a user gives in a file or a flag: decoded, or refused with one error."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


class NotJson(ValueError):
    """A text that is not JSON of the wanted type. The message gives the reason and position."""


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """Decode JSON as an object of the type `kind`.

    Raises NotJson for other text, bytes that are not UTF-8, or too deep nesting.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJson(str(error)) from error
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
