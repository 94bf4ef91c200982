"""The scores by which a router chooses experts. Without torch, since models' configs name them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores of experts: a softmax over all, or with `sigmoid` each by itself (DeepSeek V3).

    Experts lie in `groups` of equal size: chosen from are the `top_groups` whose `group_best` best,
    one or two, add up to most. Weights are multiplied by `factor` at the end.
    """

    sigmoid: bool = False
    factor: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2


SOFTMAX = Scoring()
