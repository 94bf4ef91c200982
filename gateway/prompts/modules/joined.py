"""A prompt of prompt modules and a request's own text, in the form that the engine takes.

    | head | module | module | ... |  tokens copied from these  |  parameter values  |  own text  |
    `- each in its own namespace -'  `------------------- the request's tokens --------------------'

The head is the chat template's text before the modules, and the schema's text before its first
named module. The head is a module as well, and every other module attends to it. A model makes
worse use of modules that do not follow the prompt's first tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile

import numpy as np

from engine.link.messages import pack_token_ids
from engine.link.prompt_module import PromptModule
from gateway.prompts.modules.selection import Run, Selection
from gateway.prompts.tokens.tokenizer import TokenIds
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath

_PADDING = 0  # id of the padding token, to which nothing attends

# makes a namespace from the digest of everything that decides the KV
NamespaceOf = Callable[[str], Namespace]


@dataclass(frozen=True, slots=True)
class JoinedPrompt:
    """A prompt's modules, and the request's tokens with their positions."""

    modules: tuple[PromptModule, ...]
    token_ids: TokenIds
    positions: TokenIds
    # namespace of the request's tokens, which depends on the modules before them
    namespace: Namespace

    @property
    def num_tokens(self) -> int:
        """The number of the prompt's tokens, including the modules' tokens."""
        return sum(len(part) for one in self.modules for part in one.whole) + len(self.token_ids)

    @property
    def held(self) -> int:
        """The number of tokens that the cache holds for the prompt, each module in whole blocks."""
        return sum(one.padded_tokens for one in self.modules) + len(self.token_ids)

    def block_keys(self, path: NamespacePath, block_size: int) -> bytes:
        """Return the keys of the whole KV blocks of the request's tokens."""
        return block_keys(path, self.token_ids, block_size)

    @property
    def reach(self) -> int:
        """The number of tokens, or the position after the last token if this is larger."""
        return max(self.num_tokens, int(self.positions[-1]) + 1)


@dataclass(frozen=True, slots=True)
class ModulesBefore:
    """The modules, and the values of their parameters, before the own text of each prompt."""

    modules: tuple[PromptModule, ...]
    token_ids: TokenIds  # tokens copied from the modules, then the parameters' values
    positions: TokenIds
    namespace: Namespace  # namespace of the tokens after the modules
    end: int  # position of the own text's first token

    def joined(self, own: TokenIds) -> JoinedPrompt:
        """Join the modules and the `own` tokens of one prompt."""
        after = np.arange(self.end, self.end + len(own))
        return JoinedPrompt(
            self.modules,
            np.concatenate([self.token_ids, own]).astype(np.int32),
            np.concatenate([self.positions, after]).astype(np.int32),
            self.namespace,
        )


def modules_before(
    begin: TokenIds, selection: Selection, namespace_of: NamespaceOf, block_size: int
) -> ModulesBefore:
    """Join the tokens at a prompt's beginning and the modules."""
    keyed = _keyed(begin, selection, block_size)
    digests = [one.digest for one in keyed]
    modules = tuple(_module(one, namespace_of(one.digest), block_size) for one in keyed)
    copied = [[*one.copied] for one in modules]
    ids = [one.run.token_ids[part] for one, part in zip(keyed, copied, strict=True)]
    places = [one.run.positions[part] for one, part in zip(keyed, copied, strict=True)]
    values, first = selection.value_positions + len(begin), selection.end + len(begin)
    before = _of_all(digests, values, first)
    return ModulesBefore(
        modules,
        np.concatenate([*ids, selection.value_ids]).astype(np.int32),
        np.concatenate([*places, values]).astype(np.int32),
        namespace_of(before),
        first,
    )


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A run of modules, and the digest of everything that decides its KV."""

    run: Run
    digest: str
    # number of the head's last tokens that this run begins with; None: there is no head, or
    # this run is the head
    head_tokens: int | None = None


def _keyed(begin: TokenIds, selection: Selection, block_size: int) -> list[_Keyed]:
    """Return the head, if any, and then the other runs, each after the head's last tokens."""
    placed = [
        Run((), begin, np.arange(len(begin), dtype=np.int32), np.zeros(len(begin), np.bool_)),
        *(replace(one, positions=one.positions + len(begin)) for one in selection.runs),
    ]
    unnamed = [*takewhile(lambda one: not any(one.names), placed)]
    head, others, schema = reduce(Run.then, unnamed), placed[len(unnamed) :], selection.digest
    count = len(head.token_ids)
    if not count:
        return [_Keyed(one, _digest(schema, one)) for one in others]
    last, of_head = head.since(count // block_size * block_size), _digest(schema, head)
    after = [last.then(one) for one in others]
    return [
        _Keyed(head, of_head),
        *(_Keyed(one, _digest(schema, one, of_head), count % block_size) for one in after),
    ]


def _module(keyed: _Keyed, namespace: Namespace, block_size: int) -> PromptModule:
    run, count = keyed.run, len(keyed.run.token_ids)
    padding = -count % block_size
    ids = np.concatenate([run.token_ids, np.full(padding, _PADDING, np.int32)])
    positions = np.concatenate([run.positions, np.full(padding, run.positions[-1], np.int32)])
    keys = block_keys(NamespacePath.single(namespace), ids, block_size)
    packed = pack_token_ids(ids), count, pack_token_ids(positions)
    return PromptModule(*packed, namespace, keys, keyed.head_tokens, run.scaffolds)


def _digest(schema: bytes, run: Run, head: str = "") -> str:
    """Hash everything that decides a run's KV, such as its tokens and positions."""
    names = "\n".join(name or "" for name in run.names)
    parts = (schema, names.encode(), pack_token_ids(run.token_ids), pack_token_ids(run.positions))
    return _hash(*parts, head.encode())


def _of_all(digests: list[str], values: TokenIds, first: int) -> str:
    return _hash(*(one.encode() for one in digests), pack_token_ids([*values, first]))


def _hash(*parts: bytes) -> str:
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(framed).hexdigest()
