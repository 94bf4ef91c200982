"""Shared reads of keys by rows with drafts, each of which has several tokens."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from engine.execution.shared_prefixes import Sharing, SharingRule
from engine.execution.verified_rows import row_by_token, share_by_token
from engine.link.messages import SamplingParams
from engine.step import DECODE, VERIFY, NewRequest, Row

RULE = SharingRule(block_size=16, token_bytes=1 << 20, least_tokens=64, most_rows=4)


def row(start: int, tokens: int = 1) -> Row:
    kind = VERIFY if tokens > 1 else DECODE
    return Row(1, 0, kind, start, start + tokens, True, False, bytes(4 * tokens), 0, b"")


def test_the_tokens_of_a_row_read_the_whole_blocks_before_it_once() -> None:
    sharing = share_by_token([row(500), row(100, 3)], None, RULE)
    assert sharing is not None
    assert sharing.order.tolist() == [1, 2, 3, 0]
    assert sharing.starts.tolist() == [0, 3]
    assert sharing.key_ends.tolist() == [96]
    assert sharing.own_starts(4).tolist() == [96, 96, 96, 0]


def test_a_short_row_reads_alone() -> None:
    assert share_by_token([row(63, 3)], None, RULE) is None
    assert share_by_token([row(64, 3)], None, RULE) is not None


def test_little_to_save_is_not_worth_a_pass_of_its_own() -> None:
    few_bytes = SharingRule(block_size=16, token_bytes=1, least_tokens=64, most_rows=4)
    assert share_by_token([row(100, 3)], None, few_bytes) is None


def test_rows_of_a_group_bring_all_their_tokens_in_parts_that_are_not_too_large() -> None:
    rows = [row(300), row(200, 3), row(250, 2), row(70, 2)]
    together = Sharing(np.array([1, 2, 0, 3]), np.array([0, 2], np.int32), np.array([192]), 4)
    sharing = share_by_token(rows, together, RULE)
    assert sharing is not None
    assert sharing.order.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert sharing.starts.tolist() == [0, 2, 5, 7]
    assert sharing.key_ends.tolist() == [192, 192, 64]


def test_each_token_of_a_row_keeps_its_own_position() -> None:
    given = np.array([40, 41, 90], np.int32)
    rows = row_by_token(replace(row(10, 3), positions=given.tobytes()))
    assert [np.frombuffer(one.positions, np.int32).tolist() for one in rows] == [[40], [41], [90]]
    assert [one.positions for one in row_by_token(row(10, 3))] == [b"", b"", b""]


def test_tokens_that_are_computed_again_come_before_those_that_sample() -> None:
    ids = np.array([7, 8, 9, 10], np.int32)
    new = NewRequest(0, SamplingParams(max_tokens=9), 10, 12, b"", b"")
    given = replace(row(10, 4), token_ids=ids.tobytes(), num_again=2, new=new, block_ids=b"blok")
    rows = row_by_token(given)
    assert [(one.start, one.end) for one in rows] == [(10, 11), (11, 12), (12, 13), (13, 14)]
    assert not any(one.num_again for one in rows)
    assert b"".join(one.token_ids for one in rows) == given.token_ids
    assert [one.samples for one in rows] == [False, False, True, True]
    assert [one.next_ids for one in rows] == [ids[1:2].tobytes(), ids[2:3].tobytes(), b"", b""]
    assert [one.block_ids for one in rows] == [b"blok", b"", b"", b""]
    assert [one.new for one in rows] == [None, None, new, None]
