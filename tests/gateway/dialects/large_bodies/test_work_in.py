"""The estimated work of parsing a body, which decides whether to parse it off the event loop."""

from __future__ import annotations

import msgspec
import pytest

from gateway.dialects.dialect_request import work_in, work_with
from gateway.http.bodies.body import is_flat
from gateway.processes.fair_executor import INLINE_SIZE

_SAID = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "is_inline"),
    [
        ({"prompt": [100_000] * 32_000}, True),  # 220 KiB of numbers in one list
        ({"prompt": [100_000] * 40_000}, False),
        ({"prompt": "x" * 200_000}, True),
        ({"messages": [_SAID] * 32}, True),
        ({"messages": [_SAID] * 4000}, False),  # 130 KiB of objects
        ({"prompt": [[1]] * 20_000}, False),
    ],
)
def test_one_long_list_is_less_work_than_many_small_objects(
    fields: dict[str, object], is_inline: bool
) -> None:
    assert (work_in(msgspec.json.encode(fields)) <= INLINE_SIZE) is is_inline


def test_brackets_in_texts_count_too() -> None:
    assert is_flat(b'{"prompt":"' + b"[" * 63 + b'"}')
    assert not is_flat(b'{"prompt":"' + b"[" * 64 + b'"}')


def test_a_short_prompt_makes_no_long_schema_little_work() -> None:
    ids = msgspec.json.encode([100_000] * 32_000)
    assert work_with(ids, len(ids) + 1000) <= INLINE_SIZE
    assert work_with(b'"x"', 1 << 20) > INLINE_SIZE, "choices, a schema, ..."
    assert work_with(b'"x"', 0) == 0, "a body that is given back"
