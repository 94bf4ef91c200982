"""The conversion of foreign text to text that is harmless for a terminal.

A terminal obeys control characters. They move the cursor, rewrite earlier lines, set the title, and
in some terminals the clipboard. Other characters change the direction of the text after them, so
that a name reads as another. Names, errors and answers may hold all of these.
"""

import re

# C0 except tabs and line ends, DEL, C1; Unicode's line ends, and changes of direction.
_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    r"""Escape control characters as JSON does (`\u001b`), except tabs and line ends.

    JSON keeps its meaning when it is escaped in this way.
    """
    return text if text.isprintable() else _HARMFUL.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
