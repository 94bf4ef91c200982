"""The sampling with several ranks: rank 0 samples, and sends the tokens to the others.

All ranks have the same logits, but only rank 0 has the requests' sampling parameters and masks. The
other ranks need only the tokens, as inputs of the next step. A broadcast of a few bytes takes less
time than sampling on every rank, and the ranks cannot get different tokens. In steps that are
replayed as graphs, the broadcast is part of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.rank_group import RankGroup
from engine.sampling.plan import Randomness
from engine.sampling.results import LaunchedSample, pack
from engine.sampling.sampler import Sampler
from engine.step import Bitmask, Row
from engine.transfers import HostArray, HostCopy


@dataclass(frozen=True, slots=True)
class RanksSampler(Sampler):
    """A sampler that samples on rank 0, and receives the tokens on other ranks.

    On ranks other than 0, only the tokens of the results are valid.
    """

    group: RankGroup

    @torch.inference_mode()
    def launch(
        self,
        logits: Tensor,
        rows: Sequence[Row],
        inputs: Tensor,
        allowed: Sequence[Bitmask | None] = (),
    ) -> LaunchedSample:
        """Launch sampling without masks on rank 0. Other ranks receive the tokens."""
        if self.group.rank:
            return self._taken(logits.new_empty(len(rows), dtype=torch.int64))
        return self._given(self._alone.launch(logits, rows, inputs, allowed))

    @torch.inference_mode()
    def launch_masked(
        self,
        logits: Tensor,
        rows: Sequence[Row],
        draw: Randomness[HostArray],
        allowed: Sequence[Bitmask | None],
        tokens: Tensor,
        finite: Tensor,
    ) -> LaunchedSample:
        """Launch sampling with masks on rank 0. Other ranks receive the tokens."""
        if self.group.rank:
            return self._taken(tokens)
        return self._given(self._alone.launch_masked(logits, rows, draw, allowed, tokens, finite))

    @property
    def _alone(self) -> Sampler:
        return Sampler(self.planner, self.ops, self.tables)

    def _given(self, launched: LaunchedSample) -> LaunchedSample:
        self.group.share(launched.tokens)
        return launched

    def _taken(self, tokens: Tensor) -> LaunchedSample:
        self.group.share(tokens)
        packed = pack(tokens, torch.ones_like(tokens))
        return LaunchedSample(HostCopy(packed), len(tokens), None, tokens)


def ranks_sampler(sampler: Sampler, group: RankGroup | None) -> Sampler:
    """Return the sampler of this rank of a group, or `sampler` for a single rank."""
    if group is None:
        return sampler
    return RanksSampler(sampler.planner, sampler.ops, sampler.tables, group)
