"""The scores by which a router chooses experts.

Torch is not imported, since models' configs name them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scores of experts: a softmax over all experts, or the sigmoid of each logit.

    DeepSeek V3 uses sigmoids. Experts are divided into `groups` of equal size. The experts are
    chosen from the `top_groups` groups with the largest sum of their `group_best` (one or two) best
    scores. Weights are multiplied by `factor` at the end.
    """

    sigmoid: bool = False
    factor: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2


SOFTMAX = Scoring()
