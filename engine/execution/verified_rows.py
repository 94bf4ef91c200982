"""The division of rows that verify drafts into rows of one token each.

A row of drafts is computed as several decodes of one sequence, one for each token. The keys of all
tokens are written before attention, and each token reads the keys up to its own. The decode kernels
can therefore verify drafts. The keys before the row are read once for all of its tokens, like a
shared prefix.

    verify row   | t d d d |          start 100, end 104
    by token     | t | d | d | d |    contexts 101, 102, 103, 104; keys read together: 96

A recurrent layer computes the tokens of a VERIFY row one after another. The row may begin with
tokens that an earlier step already computed. Nothing is sampled after these tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from msgspec import structs

from engine.execution.shared_prefixes import Sharing, SharingRule
from engine.step import VERIFY, Row, Step, has_drafts

ID_BYTES = 4


def by_token(step: Step) -> Step:
    """Return the step with each VERIFY row divided into rows of one token."""
    if not has_drafts(step.rows):
        return step
    rows = [
        one for row in step.rows for one in (row_by_token(row) if row.kind is VERIFY else [row])
    ]
    return structs.replace(step, rows=tuple(rows))


def row_by_token(row: Row) -> list[Row]:
    """Divide a row into rows of one token. Only the first of these rows has the new blocks."""
    one = structs.replace(row, block_ids=b"", new=None, num_again=0)
    rows = [
        structs.replace(one, start=at, end=at + 1, token_ids=_part(row.token_ids, index))
        for index, at in enumerate(range(row.start, row.end))
    ]
    for index in range(row.num_again):
        next_ids = _part(row.token_ids, index + 1)
        rows[index] = structs.replace(rows[index], samples=False, next_ids=next_ids)
    if row.positions:
        rows = [
            structs.replace(one, positions=_part(row.positions, index))
            for index, one in enumerate(rows)
        ]
    if row.block_ids:
        rows[0] = structs.replace(rows[0], block_ids=row.block_ids)
    if row.new is not None:
        rows[row.num_again] = structs.replace(rows[row.num_again], new=row.new)
    return rows


def _part(numbers: bytes, index: int) -> bytes:
    return numbers[index * ID_BYTES :][:ID_BYTES]


def share_by_token(
    rows: Sequence[Row], sharing: Sharing | None, rule: SharingRule
) -> Sharing | None:
    """Return how the tokens of decode and VERIFY rows share reads, or None if sharing is slower.

    `sharing` groups the rows as if each row had one token. If a VERIFY row is in no group, its
    tokens share the full blocks before the row.
    """
    counts = [row.num_new for row in rows]
    firsts = list(accumulate(counts, initial=0))
    groups = [] if sharing is None else _groups(sharing)
    grouped = {row for _, members in groups for row in members}
    for index, row in enumerate(rows):
        run = row.start // rule.block_size * rule.block_size
        if index not in grouped and row.kind is VERIFY and run >= rule.least_tokens:
            groups.append((run, [index]))
            grouped.add(index)
    saved = sum((sum(counts[row] for row in members) - 1) * run for run, members in groups)
    if not rule.saves_enough(saved):
        return None
    alone = [index for index in range(len(rows)) if index not in grouped]
    return _arranged(groups, alone, firsts, rule.most_rows)


def _groups(sharing: Sharing) -> list[tuple[int, list[int]]]:
    starts, order = sharing.starts.tolist(), sharing.order.tolist()
    return [
        (int(run), order[starts[group] : starts[group + 1]])
        for group, run in enumerate(sharing.key_ends)
    ]


def _arranged(
    groups: list[tuple[int, list[int]]],
    alone: list[int],
    firsts: list[int],
    most_rows: int,
) -> Sharing:
    """Arrange tokens by group, in parts of at most `most_rows`. The tokens `alone` come last."""
    starts, key_ends, order = [0], list[int](), list[int]()
    for run, members in groups:
        tokens = _tokens_of(members, firsts)
        parts = -(-len(tokens) // most_rows)
        starts += [len(order) + len(tokens) * part // parts for part in range(1, parts + 1)]
        key_ends += [run] * parts
        order += tokens
    order += _tokens_of(alone, firsts)
    return Sharing(
        order=np.array(order, np.int64),
        starts=np.array(starts, np.int32),
        key_ends=np.array(key_ends, np.int32),
        most_rows=most_rows,
    )


def _tokens_of(rows: list[int], firsts: list[int]) -> list[int]:
    return [at for row in rows for at in range(firsts[row], firsts[row + 1])]
