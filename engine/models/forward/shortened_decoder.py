"""A decoder of few layers that launches all kernels of the model, for compilation and warm-up."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise

from engine.models.forward.decoder import Decoder


def unlike_layers(kinds: Sequence[Hashable]) -> list[int]:
    """Return the indices of layers that together launch all kernels of the model.

    `kinds` has the kind of each layer. The first layer begins with a different norm, and the last
    layer computes fewer tokens. Which kernel a norm launches may depend on the kind of the layer
    before. The result therefore has the first layers, until every pair of neighbouring kinds has
    occurred, and then a layer of the last layer's kind.
    """
    whole = _launched(kinds)
    for count in range(1, len(kinds)):
        kept = [*range(count), kinds.index(kinds[-1], count)]
        if whole <= _launched([kinds[index] for index in kept]):
            return kept
    return list(range(len(kinds)))


def _launched(kinds: Sequence[Hashable]) -> set[Hashable]:
    return {*pairwise(kinds), *kinds[:-1]}


def shortened(decoder: Decoder) -> Decoder:
    """Shorten a decoder to the fewest layers that launch all kernels of the model.

    Offloaded layers compute with the present content of their buffers. Their results are
    meaningless, but they launch the same kernels.
    """
    layers = decoder.parameters.layers
    kept = tuple(layers[i] for i in unlike_layers([layer.config for layer in layers]))
    few = replace(decoder.parameters, layers=kept)
    return replace(decoder, parameters=few, prefetch=None)
