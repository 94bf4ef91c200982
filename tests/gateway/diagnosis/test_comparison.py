from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from engine.link.messages import Mark
from gateway.config import Bounds
from gateway.diagnosis.cache_miss import cache_miss
from gateway.diagnosis.comparison import Comparison, Explain, common_tokens, compare
from gateway.diagnosis.seen import SeenPrompt, SeenPrompts, digest_of_salt
from gateway.processes.fair_executor import INLINE_SIZE, at_once
from tests.gateway.support.manual_clock import ManualClock

BLOCK = 16
ADA = "ada"


def prompt(text: str, request_id: str = "new", salt: str | None = None) -> SeenPrompt:
    """Make a prompt with one token for each byte of `text`."""
    packed = np.frombuffer(text.encode(), np.uint8).astype("<i4").tobytes()
    return SeenPrompt(request_id, packed, (), False, b"model", None, digest_of_salt(salt))


def decode(ids: list[int]) -> str:
    return bytes(ids).decode()


def memory(*seen: SeenPrompt, bounds: Bounds | None = None) -> SeenPrompts:
    made = SeenPrompts(bounds or Bounds(), ManualClock())
    for one in seen:
        made.remember(ADA, one)
    return made


def compared(seen: SeenPrompts, text: str, previous: str | None = None) -> Comparison:
    return at_once(compare(seen, ADA, prompt(text), Explain(previous, None), BLOCK, decode))


def found(comparison: Comparison) -> str | None:
    return None if comparison.seen is None else comparison.seen.request_id


def test_common_tokens() -> None:
    one, other = (prompt(text).token_ids for text in ("abcd", "abXd"))
    assert common_tokens(one, other) == 2
    assert common_tokens(one, one[:3]) == 3
    assert common_tokens(one, one[:0]) == 0


def test_the_prompt_with_most_blocks_in_common_is_compared_and_of_equals_the_last() -> None:
    text = "the quick brown fox jumps over the lazy dog, " * 4
    seen = memory(
        prompt(text[:90] + "0" * 40, "more"),
        prompt(text[:90] + "1" * 40, "as much"),
        prompt(text[:40] + "2" * 40, "less"),
        prompt("3" * 80, "nothing"),
    )
    assert found(compared(seen, text)) == "as much"


def test_without_a_block_in_common_the_same_tokens_in_another_order_are_alike() -> None:
    text = "the quick brown fox jumps over the lazy dog"
    seen = memory(prompt("0123456789" * 5, "numbers"), prompt("7 " + text, "alike"))
    comparison = compared(seen, "8 " + text)
    assert found(comparison) == "alike"
    assert comparison.divergence is not None
    assert (comparison.divergence.token, comparison.divergence.change) == (0, "number")
    assert found(compared(memory(prompt("0123456789" * 5)), text)) is None, "the control"


def test_a_name_is_found_whatever_its_dialect() -> None:
    seen = memory(prompt("a" * 40, "0123abcd"))
    for name in ("0123abcd", "msg_0123abcd", "chatcmpl-0123abcd", "resp_0123abcd"):
        assert found(compared(seen, "a" * 40, name)) == "0123abcd"
    assert found(compared(seen, "a" * 40, "msg_0123abce")) is None


@pytest.mark.parametrize("length", [100, 120_000])
def test_the_earlier_prompts_that_are_read_say_how_large_they_are(length: int) -> None:
    chance = np.random.default_rng(0)
    seen = memory(
        *(
            replace(prompt("", f"{n}"), packed=chance.integers(0, 150_000, length, "<i4").tobytes())
            for n in range(16)
        )
    )
    sizes = [one or 0 for one in compare(seen, ADA, prompt("a"), Explain(), BLOCK, decode)]
    assert len(sizes) == 2 * 16, "each is looked at in a step of its own, and again"
    assert (max(sizes) > INLINE_SIZE) == (length > 100)


def test_a_name_of_another_tenant_is_as_unknown_as_one_that_nobody_has() -> None:
    seen = memory()
    seen.remember("bob", prompt("a" * 40, "bobs"))
    theirs, nobodys = (compared(seen, "a" * 40, name) for name in ("msg_bobs", "msg_none"))
    assert cache_miss(theirs, 0, None) == cache_miss(nobodys, 0, None)
    assert found(compared(seen, "a" * 40)) is None
    bobs = compare(seen, "bob", prompt("a" * 40), Explain("msg_bobs", None), BLOCK, decode)
    mine = at_once(bobs)
    assert found(mine) == "bobs", "the control"


def test_prompts_of_another_salt_are_not_looked_at() -> None:
    text = "the quick brown fox jumps over the lazy dog"
    assert found(compared(memory(prompt(text, "salted", salt="s")), text)) is None
    named = compared(memory(prompt(text + "!", "salted", salt="s")), text + "?", "salted")
    assert (named.common, named.divergence) == (0, None)
    assert cache_miss(named, 0, None).reason == "salt_changed"


def test_excerpts_are_bounded() -> None:
    seen = memory(prompt("a" * 200 + "1" + "b" * 200))
    at = compared(seen, "a" * 200 + "2" + "b" * 200).divergence
    assert at is not None
    assert at.before == "a" * 40 + "1" + "b" * 39
    assert at.after == "a" * 40 + "2" + "b" * 39


def test_no_prompt_is_remembered_where_that_is_off() -> None:
    for off in (Bounds(max_tenant_seen_bytes=0), Bounds(seen_life_s=0)):
        comparison = compared(memory(prompt("a" * 40), bounds=off), "a" * 40)
        assert cache_miss(comparison, 0, None).reason == "unavailable"


@pytest.mark.parametrize(
    ("cached", "reason", "lost"),
    [(96, "none", 0), (86, "none", 10), (80, "evicted", 16), (0, "evicted", 96)],
)
def test_less_than_a_block_is_not_lost(cached: int, reason: str, lost: int) -> None:
    """Report no loss smaller than a block: of the earlier prompt's 100 tokens, whole blocks hold
    96.
    """
    miss = cache_miss(compared(memory(prompt("a" * 100)), "a" * 120), cached, 0.5)
    assert (miss.reason, miss.reusable_tokens, miss.lost_tokens) == (reason, 96, lost)
    assert miss.lost_ms == 500 * lost


@pytest.mark.parametrize(
    ("later", "cached", "reason"),
    [(299, 0, "evicted"), (300, 0, "expired"), (300, 48, "evicted"), (300, 96, "none")],
)
def test_what_is_lost_after_the_time_of_its_mark_has_expired(
    later: float, cached: int, reason: str
) -> None:
    """Report an expired mark.

    The first 40 tokens of 100 were marked for five minutes.
    """
    clock = ManualClock()
    seen = SeenPrompts(Bounds(), clock)
    seen.remember(ADA, replace(prompt("a" * 100), marks=(Mark(40, 300.0),)))
    clock.advance(later)
    miss = cache_miss(compared(seen, "a" * 120), cached, None)
    assert miss.reason == reason
    assert miss.token == (None if reason == "none" else cached)


@pytest.mark.parametrize(
    ("matched", "reason", "shown"),
    [(96, "no_state", 96), (20, "evicted", 20), (0, "evicted", None)],
)
def test_what_matched_beyond_its_state_is_said(
    matched: int, reason: str, shown: int | None
) -> None:
    """Report the tokens that matched after the last state.

    Whole blocks hold 96 tokens of the earlier prompt, but a state was kept only after the first 16.
    """
    miss = cache_miss(compared(memory(prompt("a" * 100)), "a" * 120), 16, None, matched)
    assert (miss.reason, miss.token, miss.lost_tokens) == (reason, 16, 80)
    assert miss.matched_tokens == (msgspec.UNSET if shown is None else shown)


def test_without_a_mark_nothing_expires() -> None:
    clock = ManualClock()
    seen = SeenPrompts(Bounds(), clock)
    seen.remember(ADA, prompt("a" * 100))
    clock.advance(1000)
    assert cache_miss(compared(seen, "a" * 120), 0, None).reason == "evicted"


def test_a_change_near_the_end_costs_nothing() -> None:
    """Report no loss after a change to the end of a prompt, which only opens the answer."""
    seen = memory(prompt("a" * 90 + "b" * 10))
    for text, cached, reason in (("a" * 90, 90, "none"), ("a" * 79, 79, "messages_changed")):
        assert cache_miss(compared(seen, text + "c" * 40), cached, None).reason == reason


def test_the_larger_loss_is_named_where_there_are_two() -> None:
    """Name the larger of two losses.

    The second half of 128 tokens has changed; a replica may also lack some of the first half.
    """
    seen = memory(prompt("a" * 64 + "b" * 64))
    changed = compared(seen, "a" * 64 + "c" * 64)
    none, less, one = (cache_miss(changed, cached, None) for cached in (0, 16, 64))
    assert (none.reason, none.token, none.before, none.lost_tokens) == ("evicted", 0, None, 127)
    assert (less.reason, less.token, less.lost_tokens) == ("messages_changed", 64, 111)
    assert (one.reason, one.token, one.lost_tokens) == ("messages_changed", 64, 63)
    assert one.lost_ms is None, "nothing was measured"


def test_the_last_token_is_always_computed() -> None:
    miss = cache_miss(compared(memory(prompt("a" * 64)), "a" * 64), 63, None)
    assert (miss.reason, miss.reusable_tokens, miss.lost_tokens) == ("none", None, None)
    assert cache_miss(compared(memory(prompt("a" * 64)), "a" * 64), 47, None).lost_tokens == 16
