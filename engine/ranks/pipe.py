"""The hidden states from stage to stage: over gloo on a CPU, over NCCL between GPUs.

    stage    0 -> 1 -> 2      stage k is rank k of the pipe's group

A stage sends its hidden states to the next stage. Nothing is sent back, so stages never wait for
each other in a circle. Sampled tokens come with a later step, as data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.ranks.collectives import Collectives, wait_for
from storage.layouts.stage import Stage

_TAG = 0


class StagePipe:
    """The stages of one model, seen from one of them.

    Implements `Pipe`. Used by one thread only. On a CPU `send` waits until the next stage receives.
    On CUDA the host does not wait, and later launches run after the exchange.
    """

    def __init__(self, stage: Stage, stages: Collectives, device: torch.device) -> None:
        """Connect the processes of all `stages`, where rank k computes stage k.

        Waits for all ranks.
        """
        self.stage = stage
        self.is_queued = device.type == "cuda"  # the host waits for no other stage
        self._stages = stages
        if self.is_queued:
            self._warm_up(device)

    def receive(self, into: Tensor) -> Tensor:
        """Receive the previous stage's hidden states. Raises RankLeft if that stage is gone."""
        wait_for(self._group.recv([_bytes(into)], self.stage.index - 1, _TAG))
        return into

    def send(self, x: Tensor) -> None:
        """Send hidden states to the next stage. Raises RankLeft if that stage is gone."""
        wait_for(self._group.send([_bytes(x)], self.stage.index + 1, _TAG))

    @property
    def _group(self) -> Any:
        return self._stages.devices

    def _warm_up(self, device: torch.device) -> None:
        """Use NCCL once to connect two stages: no graph can capture its first use."""
        number = torch.zeros(1, device=device)
        if not self.stage.is_first:
            self.receive(number)
        if not self.stage.is_last:
            self.send(number)
        torch.cuda.synchronize(device)


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)
