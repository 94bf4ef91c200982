"""The sending of hidden states from stage to stage: over gloo on CPUs, over NCCL between GPUs.

    stage    0 -> 1 -> 2      stage k is rank k in the group of the pipe

A stage sends its hidden states to the next stage. Nothing is sent back, so a deadlock between
stages is impossible. Sampled tokens reach the first stage with a later step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.ranks.collectives import Collectives, wait_for
from storage.layouts.stage import Stage

_TAG = 0


class StagePipe:
    """The pipe between stages, as one stage uses it.

    Implements `Pipe`. Used by one thread only. On a CPU, `send` waits until the next stage
    receives. On CUDA, the host does not wait, and later launches run after the exchange.
    """

    def __init__(self, stage: Stage, stages: Collectives, device: torch.device) -> None:
        """Connect the processes of all stages. Rank k of the group `stages` computes stage k.

        Waits for all ranks.
        """
        self.stage = stage
        self.is_queued = device.type == "cuda"  # True: the host does not wait for other stages
        self._stages = stages
        if self.is_queued:
            self._warm_up(device)

    def receive(self, into: Tensor) -> Tensor:
        """Receive the previous stage's hidden states. Raises RankLeft if that stage has ended."""
        wait_for(self._group.recv([_bytes(into)], self.stage.index - 1, _TAG))
        return into

    def send(self, x: Tensor) -> None:
        """Send hidden states to the next stage. Raises RankLeft if that stage has ended."""
        wait_for(self._group.send([_bytes(x)], self.stage.index + 1, _TAG))

    @property
    def _group(self) -> Any:
        return self._stages.devices

    def _warm_up(self, device: torch.device) -> None:
        """Use NCCL once, so that it connects two stages. A graph cannot capture the first use."""
        number = torch.zeros(1, device=device)
        if not self.stage.is_first:
            self.receive(number)
        if not self.stage.is_last:
            self.send(number)
        torch.cuda.synchronize(device)


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)
