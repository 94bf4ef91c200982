"""Sequences without an engine, which decode a given answer."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np

from engine.drafting.draft import Drafter
from engine.link.messages import SamplingParams
from engine.sequences.sequence import Sequence
from prefix_cache.hashing import block_keys
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from tests.prefix_cache.support.scene import Scene, path

UNKNOWN = -1  # placeholder for tokens that are not generated yet
MINE = path("mine")


def row(
    prompt: Ordered[int],
    most: int = 64,
    *,
    where: NamespacePath = MINE,
    prediction: Ordered[int] | None = None,
) -> Sequence:
    """Make a sequence of a prompt, with room for `most` generated tokens."""
    tokens = np.full(len(prompt) + most, UNKNOWN, np.int32)
    tokens[: len(prompt)] = prompt
    return Sequence(
        request_id="r",
        client=b"",
        flow="flow",
        weight=1.0,
        path=where,
        block_keys=b"",
        sampling=SamplingParams(max_tokens=most),
        prompt_len=len(prompt),
        arrived=0.0,
        tokens=tokens,
        num_tokens=len(prompt),
        prediction=None if prediction is None else np.array(prediction, np.int32),
    )


def give(sequence: Sequence, *token_ids: int) -> None:
    """Append these tokens to the sequence."""
    for token_id in token_ids:
        sequence.append(token_id)


def accepted(token_ids: Ordered[int], answer: Ordered[int]) -> int:
    """Count the leading tokens of a draft that agree with the answer."""
    count = 0
    for drafted, token_id in zip(token_ids, answer, strict=False):
        if drafted != token_id:
            break
        count += 1
    return count


def decode(
    drafter: Drafter, sequence: Sequence, answer: Ordered[int], most: int = 16
) -> tuple[int, int, int]:
    """Decode `answer` with a drafter; return the numbers of steps, drafted tokens and accepted
    tokens.
    """
    left, steps, drafted, right = list(answer), 0, 0, 0
    while left:
        draft = drafter.draft(sequence.num_tokens, min(most, len(left) - 1)) if left[1:] else ()
        agreed = accepted(draft, left)
        steps, right = steps + 1, right + agreed
        drafted += len(draft)
        give(sequence, *left[: agreed + 1])
        del left[: agreed + 1]
    return steps, drafted, right


def held(scene: Scene, sequence: Sequence) -> Lease:
    """Give the sequence a lease of the scene's cache, and commit its known tokens."""
    ids = sequence.token_ids.copy()
    lease = scene.must_acquire(sequence.path, ids)
    scene.commit(lease, ids)
    sequence.hold(lease, 1)
    return lease


def committed(scene: Scene, sequence: Sequence) -> None:
    """Commit all tokens of a sequence with a lease, except the last, which is not computed yet."""
    lease, ids = sequence.lease, sequence.token_ids.copy()
    assert lease is not None
    assert scene.cache.extend(lease, len(ids), now=scene.tick())
    keys = block_keys(sequence.path, ids, scene.block_size)
    scene.cache.commit(lease, ids, len(ids) - 1, keys, now=scene.tick())
