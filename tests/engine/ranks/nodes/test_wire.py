"""Frames between machines: what is missing, doubled or no message is noticed."""

from __future__ import annotations

import pytest

from engine.ranks.nodes.wire import FROM_NODE, LinkBroken, Numbered, RankEnded, RankReport

MESSAGES = [RankReport(1, b"x"), RankEnded(1, 0), RankReport(2, b"")]


@pytest.mark.parametrize("order", [[0, 2], [0, 0], [1], [0, 2, 1]])
def test_a_frame_that_is_missing_or_comes_again_ends_it(order: list[int]) -> None:
    sent, taken, again = Numbered(), Numbered(), Numbered()
    frames = [sent.frame(message) for message in MESSAGES]
    assert [again.message(one, FROM_NODE) for one in frames] == MESSAGES, "the control"
    with pytest.raises(LinkBroken, match="came in place of"):
        _ = [taken.message(frames[number], FROM_NODE) for number in order]


@pytest.mark.parametrize("content", [b"", b"x", b"\xc1", b"\x93\xa4Join\x01\x02"])
def test_what_is_no_message_ends_it(content: bytes) -> None:
    frame = Numbered().frame(MESSAGES[0])
    with pytest.raises(LinkBroken):
        Numbered().message(frame[:8] + content, FROM_NODE)
    with pytest.raises(LinkBroken):
        Numbered().message(frame[:7], FROM_NODE)
