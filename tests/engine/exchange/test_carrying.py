"""The refusal of exports and imports by an engine of several ranks."""

from __future__ import annotations

from typing import cast

from engine.exchange.carrying import CarriedPrefixes
from engine.link.carrying_messages import ReadPrefix
from engine.sequences.pins import Pins
from prefix_cache.cache import PrefixCache


def test_several_ranks_say_what_to_do_instead() -> None:
    carried = CarriedPrefixes(cast(PrefixCache, None), cast(Pins, None), None)
    answer = carried.answer(ReadPrefix(query_id="q", pin_id="p", first=0, count=1), now=0.0)
    assert answer.code == "prefix_not_carried"
    assert answer.message is not None
    assert "ratoon prefixes create" in answer.message
