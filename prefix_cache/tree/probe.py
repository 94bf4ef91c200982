"""The probe of a prompt: what a lease would find in the tree."""

from __future__ import annotations

from typing import NamedTuple

from prefix_cache.hashing import TokenIds
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.match import Whereabouts
from prefix_cache.tree.tree import RadixTree


class FoundPrefix(NamedTuple):
    """The part of a prompt that a lease would find in the cache."""

    found: Whereabouts
    partial: int  # leading tokens of the next block that a lease would copy
    matched: int  # prompt tokens in the tree, with or without a recurrent state at their end


def probe(tree: RadixTree, path: NamespacePath, token_ids: TokenIds) -> FoundPrefix:
    """Count the blocks and the partial block that a lease would find."""
    known, partial = token_ids[:-1], None
    match = tree.match(path, known)
    if match.found.device == match.at.num_blocks:
        partial = tree.partial(match.at, path, known)
    copied = 0 if partial is None else partial.num_tokens
    matched = match.known.num_blocks * tree.block_size + copied
    return FoundPrefix(match.found, copied, matched)
