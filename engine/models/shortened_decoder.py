"""A decoder of few layers that launches all kernels of the whole one: it is compiled and warmed up.

Knows: which layers launch the same. Does not know: what a layer computes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise

from engine.models.decoder import Decoder


def unlike_layers(kinds: Sequence[Hashable]) -> list[int]:
    """Return the indices of layers that together launch all kernels of the model.

    `kinds` has the kind of each layer. The first layer begins with another norm than those after
    it, and the last one computes fewer tokens. A norm may launch another kernel after a layer of
    another kind. So of layers of one kind the first two are kept, and of several kinds the first
    layers up to where every pair of neighbours has occurred, and a last one.
    """
    whole = _launched(kinds)
    for count in range(1, len(kinds)):
        kept = [*range(count), kinds.index(kinds[-1], count)]
        if whole <= _launched([kinds[index] for index in kept]):
            return kept
    return list(range(len(kinds)))


def _launched(kinds: Sequence[Hashable]) -> set[Hashable]:
    """Return pairs of neighbouring kinds, and the kinds of layers that compute all tokens."""
    return {*pairwise(kinds), *kinds[:-1]}


def shortened(decoder: Decoder) -> Decoder:
    """Shorten a decoder to the fewest layers that launch all kernels of the model.

    Layers that stay in host memory are computed with whatever lies in their buffers: what comes
    out is of no use then, and the same kernels are launched.
    """
    layers = decoder.parameters.layers
    kept = tuple(layers[i] for i in unlike_layers([layer.config for layer in layers]))
    few = replace(decoder.parameters, layers=kept)
    return replace(decoder, parameters=few, prefetch=None)
