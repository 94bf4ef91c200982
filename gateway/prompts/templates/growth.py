"""The sizes of a template's results, checked before filters and operators compute them.

Each function here raises TooMuchWork for a result that would be too long. Filters and operators
without a function here return results about as long as their inputs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from string import Formatter
from typing import Any

from gateway.prompts.templates.meter import TooMuchWork, check_count, check_size, extent

_MOST_WIDTH = 999
_MOST_INDENT = 64
_MOST_BITS = 1 << 16
# characters at which a text is split into words
_BLANKS = [one for one in map(chr, range(0x3001)) if one.isspace()]
_WIDE = re.compile(r"\d{4}")
_WIDE_PERCENT = re.compile(r"%[-#0 +.\d]*(?:\d{4}|\*)")
_WIDE_NAMED = re.compile(r"[%)][-#0 +.\d]*(?:\d{4}|\*)")  # a wide format such as `%(name)1000d`
_WIDE_TIME = re.compile(r"%[-_0^#+]*\d{3}")


def replaced(text: Any, old: str, new: str, *_: Any, **__: Any) -> None:
    """Check the size of `text` with `new` in place of each `old`."""
    text = str(text)
    check_size(len(text) + text.count(str(old)) * len(str(new)))


def joined(separator: Any, items: Any = (), *_: Any, **__: Any) -> None:
    """Check the size of texts, or other values, joined by a separator."""
    check_size(extent(items) + len(str(separator)) * len(items))


def filter_joined(items: Any, d: Any = "", *_: Any, **__: Any) -> None:
    """Check the size of joined texts, with arguments in the filter's order."""
    joined(d, items)


def padded(text: Any, width: Any = 80, *_: Any) -> None:
    """Check the size of a padded text."""
    check_size(max(len(str(text)), width))


def formatted(form: str, *args: Any, **named: Any) -> None:
    """Check the size of the result of the method `format`."""
    fields = 0
    for _, name, spec, _ in Formatter().parse(form):
        fields += name is not None
        if spec and ("{" in spec or _WIDE.search(spec)):
            raise TooMuchWork
    _check_fields(form, fields, args, named)


def percent_formatted(form: Any, *args: Any, **named: Any) -> None:
    """Check the size of a text with values in place of `%s`, by operator or filter."""
    form = str(form)
    if (_WIDE_NAMED if "%(" in form else _WIDE_PERCENT).search(form):
        raise TooMuchWork
    _check_fields(form, form.count("%"), args, named)


def _check_fields(form: str, fields: int, args: Iterable[Any], named: Mapping[str, Any]) -> None:
    longest = max(map(extent, (*args, *named.values())), default=0)
    check_size(len(form) + fields * (longest + _MOST_WIDTH))


def indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    """Check the size of an indented text, with blanks before each line."""
    text, each = str(text), width if isinstance(width, int) else len(width)
    check_size(len(text) + (text.count("\n") + 1) * each)


def as_json(value: Any, *_: Any, indent: Any = None, **__: Any) -> None:
    """Check the size of `value` as JSON, indented or not."""
    each = indent if isinstance(indent, int) else len(indent or "")
    if each > _MOST_INDENT:
        raise TooMuchWork
    extent(value, each)


def rounded(_: Any, precision: Any = 0, *__: Any) -> None:
    """Check the number of digits to round to, since ten is raised to this power."""
    if abs(precision) > _MOST_WIDTH:
        raise TooMuchWork


def summed(_: Any, __: Any = None, start: Any = 0, **___: Any) -> None:
    """Refuse sums of other values than numbers, since lists would be copied for each item."""
    if not isinstance(start, int | float):
        raise TooMuchWork


def split(text: str, sep: Any = None, *_: Any, **__: Any) -> None:
    """Check the number of pieces of a text split at separators, blanks or line ends."""
    separators = [sep] if isinstance(sep, str) else _BLANKS
    check_count(sum(map(text.count, separators)))


def listed(value: Any, *_: Any, **__: Any) -> None:
    """Check the length of a list of the items in `value`. A text is a list of characters."""
    if isinstance(value, str):
        check_count(len(value))


def appended(items: list[Any], *_: Any, **__: Any) -> None:
    """Check the length of a list with one more item."""
    check_count(len(items) + 1)


def written(value: Any, *_: Any, **__: Any) -> None:
    """Check the size of `value` written as text or sorted."""
    listed(value)
    extent(value)


def as_text(value: Any, *_: Any, **__: Any) -> None:
    """Check the size of `value` converted to text."""
    extent(value)


def compared(left: Any, right: Any) -> None:
    """Check the size of two values that are compared, or of which one is searched in the other."""
    extent(left)
    extent(right)


def strftime(form: Any) -> None:
    """Check the width in a date's format, since some systems allow a width."""
    if isinstance(form, str) and (_WIDE_TIME.search(form) or len(form) > _MOST_WIDTH):
        raise TooMuchWork


def multiplied(left: Any, right: Any) -> None:
    """Check the size of a product of whole numbers, or of a repeated text or list."""
    for one, times in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(times, int):
            check_size(len(one) * times)
            if not isinstance(one, str):
                check_count(len(one) * times)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def raised(left: Any, right: Any) -> None:
    """Check the size of a power."""
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def remainder(left: Any, right: Any) -> None:
    """Check the size of a `%`-formatted text. For numbers `%` needs no check."""
    if isinstance(left, str):
        percent_formatted(left, right)


def _check_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TooMuchWork


def as_list(value: Any) -> Any:
    """Return the result of a filter such as `map` as a list, since a list's size is known."""
    if not isinstance(value, Iterator):
        return value
    items = []
    for item in value:
        items.append(item)
        check_count(len(items))
    return items


Growth = Callable[..., None]
OF_OPERATORS: Mapping[str, Growth] = {"*": multiplied, "**": raised, "%": remainder}
