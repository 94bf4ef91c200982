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

from engine.link.messages import Generate, pack_token_ids
from engine.link.prompt_module import PromptModule
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.fake_runner import next_kv, next_token
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.rig import generate


@dataclass(frozen=True)
class Part:
    """A module before padding: its tokens, which begin at a position and may have a gap.

    Prompts do not attend to the tokens of `scaffold`, (first, end).
    """

    token_ids: list[int]
    first: int
    gap_at: int | None = None  # number of tokens before a gap
    gap: int = 0
    scaffold: tuple[int, int] = (0, 0)

    @property
    def positions(self) -> list[int]:
        cut = len(self.token_ids) if self.gap_at is None else self.gap_at
        return [self.first + at + (self.gap if at >= cut else 0) for at in range(len(self))]

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def texts(self) -> list[tuple[int, int]]:
        """The tokens to which prompts attend, (first, end) before and after the scaffold."""
        first, end = self.scaffold
        return [(0, first), (end, len(self))] if first < end else [(0, len(self))]

    def module(self, block_size: int, head: Part | None = None) -> PromptModule:
        """Return the module for a request; its namespace is derived from its contents and those of
        its head.
        """
        own, positions = self.after(head, block_size)
        padding = -len(own) % block_size
        ids = np.array([*own, *[0] * padding], np.int32)
        after = positions[-1] + 1
        positions += range(after, after + padding)
        before = () if head is None else (head.token_ids, head.positions)
        namespace = named(own, positions, *before)
        keys = block_keys(NamespacePath.single(namespace), ids, block_size)
        last = None if head is None else len(head) % block_size
        packed = pack_token_ids(ids), len(own), pack_token_ids(positions)
        first, end = (len(own) - len(self) + at for at in self.scaffold)
        scaffolds = ((first, end),) if first < end else ()
        return PromptModule(*packed, namespace, keys, last, scaffolds)

    def after(self, head: Part | None, block_size: int) -> tuple[list[int], list[int]]:
        """Return the module's tokens and positions, after the last tokens of its head."""
        whole = 0 if head is None else len(head) // block_size * block_size
        ids, positions = ([], []) if head is None else (head.token_ids, head.positions)
        return [*ids[whole:], *self.token_ids], [*positions[whole:], *self.positions]


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
    has_head: bool = False,
    **more: Any,
) -> Generate:
    """Make a request of modules and its own tokens, which begin at position `first`.

    `has_head`: the first module is the head of the others.
    """
    ids, positions, modules = list[int](), list[int](), list[PromptModule]()
    for part, head in with_heads(parts, has_head):
        modules.append(part.module(block_size, head))
        tokens, places = part.after(head, block_size)
        ids += [tokens[at] for at in modules[-1].copied]
        positions += [places[at] for at in modules[-1].copied]
    ids += own
    positions += range(first, first + len(own))
    namespace = named(has_head, *((part.token_ids, part.positions) for part in parts))
    made = generate(request_id, ids, namespace=namespace, block_size=block_size, **more)
    packed = pack_token_ids(positions)
    return msgspec.structs.replace(made, modules=tuple(modules), positions=packed)


def with_heads(parts: Sequence[Part], has_head: bool) -> list[tuple[Part, Part | None]]:
    """Return each module with its head."""
    head = parts[0] if has_head else None
    return [(part, head if number else None) for number, part in enumerate(parts)]


def in_truth(
    checkpoint: Checkpoint,
    parts: Sequence[Part],
    own: list[int],
    first: int,
    *,
    has_head: bool = False,
) -> Tensor:
    """Return the reference's logits (own tokens, V).

    The request's own tokens attend to all tokens except scaffolds, a module's only to that module.
    `has_head`: all modules also attend to the first.
    """
    ids = [one for part in parts for one in part.token_ids] + own
    positions = [one for part in parts for one in part.positions]
    positions += range(first, first + len(own))
    allowed = torch.ones(len(ids), len(ids)).tril().bool()
    start, read_by_all = 0, len(parts[0]) if has_head else 0
    for part in parts:
        end = start + len(part)
        allowed[start:end, read_by_all:start] = False
        allowed[end:, start:end][:, slice(*part.scaffold)] = False
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


def expected(
    parts: Sequence[Part],
    own: list[int],
    count: int,
    block_size: int,
    *,
    has_head: bool = False,
) -> list[int]:
    """Return the tokens that `FakeRunner` generates after modules that were computed separately."""
    whole, copied = list[int](), list[int]()
    for part, head in with_heads(parts, has_head):
        before = [] if head is None else head.token_ids
        chain = list(accumulate([*before, *part.token_ids], next_kv, initial=0))[1:]
        for first, last in part.texts:
            first, last = len(before) + first, len(before) + last
            start = min(-(-first // block_size) * block_size, last)
            end = max(last // block_size * block_size, start)
            whole += chain[start:end]
            copied += chain[first:start] + chain[end:last]
    kv, generated = whole + copied, list[int]()
    for token_id in own:
        kv.append(next_kv(kv[-1] if kv else 0, token_id))
    for _ in range(count):
        generated.append(next_token(kv))
        kv.append(next_kv(kv[-1], generated[-1]))
    return generated
