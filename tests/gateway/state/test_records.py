"""Records stored before a field existed can still be read."""

from __future__ import annotations

import msgspec

from gateway.state.records import PrefixSource, PublishedPrefix

STORED = b"""{
"id": "px_1", "name": "rules", "version": 1, "scope": "all", "created_at": 1.0, "tokens": 7,
"source": {"messages": [{"role": "system", "content": "hi"}], "text": null%b},
"deleted_at": null}"""


def test_a_prefix_stored_before_tools_has_none() -> None:
    before = msgspec.json.decode(STORED % b"", type=PublishedPrefix)
    assert before.source == PrefixSource(messages=[{"role": "system", "content": "hi"}])
    assert before.source.tools is None
    now = msgspec.json.decode(STORED % b', "tools": [{"b": 1, "a": 2}]', type=PublishedPrefix)
    assert now.source.tools == [{"b": 1, "a": 2}]
    assert msgspec.json.decode(msgspec.json.encode(before), type=PublishedPrefix) == before
