"""Text of others made harmless for a terminal, before it is shown or logged.

A terminal obeys control characters: they move the cursor, rewrite lines that were shown before, set
the title, and in some terminals the clipboard. Others change the direction of what follows, so that
a name reads as another. Names, errors and answers may hold all of them.
"""

import re

# C0 but for tabs and ends of lines, DEL, C1; Unicode's ends of lines, and changes of direction.
_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    r"""Spell control characters as JSON does (`\u001b`), but for tabs and ends of lines.

    So JSON stays the same JSON.
    """
    return text if text.isprintable() else _HARMFUL.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
