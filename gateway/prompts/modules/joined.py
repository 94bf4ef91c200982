"""A prompt of modules and a request's own text, as the engine takes it.

    | head | module | module | ... |  last tokens of these  |  values  |  own text  |
    `--- modules: each in a namespace of its own ---'  `-- the request's tokens ---'

The head is the text that a chat template writes before the modules. The head is a module as well:
all modules must attend to the tokens with which a model begins every text, so these are computed
first.

Knows: modules, positions, namespaces as functions. Does not know: the tenants of the namespaces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.link.messages import PromptModule, pack_token_ids
from gateway.prompts.modules.selection import Run, Selection
from gateway.prompts.tokens.tokenizer import TokenIds
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath

_PADDING = 0  # a token that nothing attends to

NamespaceOf = Callable[[str], Namespace]  # from the digest of all that decides the KV


@dataclass(frozen=True, slots=True)
class JoinedPrompt:
    """A prompt's modules, and the request's tokens with their positions."""

    modules: tuple[PromptModule, ...]
    token_ids: TokenIds
    positions: TokenIds
    namespace: Namespace  # of the request's tokens; depends on the modules before them

    @property
    def num_tokens(self) -> int:
        """The number of tokens, including the modules' tokens."""
        return sum(one.whole_tokens for one in self.modules) + len(self.token_ids)

    def block_keys(self, path: NamespacePath, block_size: int) -> bytes:
        """Return the keys of the whole blocks of the request's tokens."""
        return block_keys(path, self.token_ids, block_size)

    @property
    def reach(self) -> int:
        """The number of tokens or the position after the last one, whichever is more."""
        return max(self.num_tokens, int(self.positions[-1]) + 1)


def joined(
    head: TokenIds, selection: Selection, own: TokenIds, namespace_of: NamespaceOf, block_size: int
) -> JoinedPrompt:
    """Join the head, the modules, and the request's `own` tokens."""
    shift = len(head)
    runs = [Run((None,), head, np.arange(shift, dtype=np.int32))] if shift else []
    runs += [Run(one.names, one.token_ids, one.positions + shift) for one in selection.runs]
    digests = [_digest(selection.digest, run) for run in runs]
    modules = [
        _module(run, namespace_of(digest), block_size)
        for run, digest in zip(runs, digests, strict=True)
    ]
    last = [slice(one.whole_tokens, None) for one in modules]
    ids = [run.token_ids[part] for run, part in zip(runs, last, strict=True)]
    places = [run.positions[part] for run, part in zip(runs, last, strict=True)]
    values, first = selection.value_positions + shift, selection.end + shift
    before = _of_all(digests, values, first)
    return JoinedPrompt(
        tuple(modules),
        np.concatenate([*ids, selection.value_ids, own]).astype(np.int32),
        np.concatenate([*places, values, np.arange(first, first + len(own))]).astype(np.int32),
        namespace_of(before),
    )


def _module(run: Run, namespace: Namespace, block_size: int) -> PromptModule:
    count = len(run.token_ids)
    padding = -count % block_size
    ids = np.concatenate([run.token_ids, np.full(padding, _PADDING, np.int32)])
    positions = np.concatenate([run.positions, np.full(padding, run.positions[-1], np.int32)])
    keys = block_keys(NamespacePath.single(namespace), ids, block_size)
    return PromptModule(pack_token_ids(ids), count, pack_token_ids(positions), namespace, keys)


def _digest(schema: bytes, run: Run) -> str:
    """Hash everything that decides a run's KV: the schema, its modules, tokens and positions."""
    names = "\n".join(name or "" for name in run.names)
    parts = (schema, names.encode(), pack_token_ids(run.token_ids), pack_token_ids(run.positions))
    return _hash(*parts)


def _of_all(digests: list[str], values: TokenIds, first: int) -> str:
    """Hash everything that decides the KV of a request's tokens, except these tokens."""
    return _hash(*(one.encode() for one in digests), pack_token_ids([*values, first]))


def _hash(*parts: bytes) -> str:
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(framed).hexdigest()
