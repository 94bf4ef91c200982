"""Prompts made of modules: as requests to an engine, and as `transformers` computes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from engine.link.messages import Generate, PromptModule, pack_token_ids
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.fake_runner import next_kv, next_token
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.rig import generate


@dataclass(frozen=True)
class Part:
    """A module before padding: tokens from a position on, perhaps with a gap."""

    token_ids: list[int]
    first: int
    gap_at: int | None = None  # tokens before a gap
    gap: int = 0

    @property
    def positions(self) -> list[int]:
        cut = len(self.token_ids) if self.gap_at is None else self.gap_at
        return [self.first + at + (self.gap if at >= cut else 0) for at in range(len(self))]

    def __len__(self) -> int:
        return len(self.token_ids)

    def module(self, block_size: int) -> PromptModule:
        """The module as in a request; its namespace is derived from its contents."""
        padding = -len(self) % block_size
        ids = np.array([*self.token_ids, *[0] * padding], np.int32)
        after = self.positions[-1] + 1
        positions = [*self.positions, *range(after, after + padding)]
        namespace = named(self.token_ids, positions)
        keys = block_keys(NamespacePath.single(namespace), ids, block_size)
        return PromptModule(
            pack_token_ids(ids), len(self), pack_token_ids(positions), namespace, keys
        )


def named(*content: object) -> Namespace:
    """Return a namespace derived from its contents."""
    return Namespace(hashlib.sha256(repr(content).encode()).digest()[:16])


def modular(
    request_id: str,
    parts: Sequence[Part],
    own: list[int],
    first: int,
    *,
    block_size: int = 4,
    **more: Any,
) -> Generate:
    """Make a request of modules and own tokens; the own tokens begin at position `first`."""
    tails = [(part, len(part) // block_size * block_size) for part in parts]
    ids = [one for part, at in tails for one in part.token_ids[at:]] + own
    positions = [one for part, at in tails for one in part.positions[at:]]
    positions += range(first, first + len(own))
    namespace = named(*((part.token_ids, part.positions) for part in parts))
    made = generate(request_id, ids, namespace=namespace, block_size=block_size, **more)
    modules = tuple(part.module(block_size) for part in parts)
    return msgspec.structs.replace(made, modules=modules, positions=pack_token_ids(positions))


def in_truth(checkpoint: Checkpoint, parts: Sequence[Part], own: list[int], first: int) -> Tensor:
    """Return logits (own tokens, V); modules attend within themselves, own tokens to all tokens."""
    ids = [one for part in parts for one in part.token_ids] + own
    positions = [one for part in parts for one in part.positions]
    positions += range(first, first + len(own))
    allowed = torch.ones(len(ids), len(ids)).tril().bool()
    start = 0
    for part in parts:
        end = start + len(part)
        allowed[start:end, :start] = False
        start = end
    mask = torch.zeros(len(ids), len(ids)).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        found = checkpoint.truth(
            torch.tensor([ids]),
            attention_mask=mask[None, None],
            position_ids=torch.tensor([positions]),
            use_cache=False,
        )
    return torch.as_tensor(found.logits[0, start:].float())


def expected(parts: Sequence[Part], own: list[int], count: int, block_size: int) -> list[int]:
    """Return the tokens that `FakeRunner` generates after separately computed modules."""
    whole, last = list[int](), list[int]()
    for part in parts:
        chain = list(accumulate(part.token_ids, next_kv, initial=0))[1:]
        cut = len(part) // block_size * block_size
        whole, last = whole + chain[:cut], last + chain[cut:]
    kv, generated = whole + last, list[int]()
    for token_id in own:
        kv.append(next_kv(kv[-1] if kv else 0, token_id))
    for _ in range(count):
        generated.append(next_token(kv))
        kv.append(next_kv(kv[-1], generated[-1]))
    return generated
