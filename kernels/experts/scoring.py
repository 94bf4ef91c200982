"""The scores by which a router chooses experts.

This module does not import torch, because configs of models name the scores.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scores of experts: a softmax over all experts, or the sigmoid of each logit.

    Sigmoids are used by DeepSeek V3. Experts are divided into `groups` groups of equal size, and
    chosen only from the `top_groups` groups with the largest sum of their `group_best` (one or two)
    best scores. Weights are multiplied by `factor` at the end.
    """

    sigmoid: bool = False
    factor: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2


SOFTMAX = Scoring()
