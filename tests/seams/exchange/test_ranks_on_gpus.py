"""Two engines, each of two ranks on the same two GPUs: slices go from GPU to GPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from engine.config import DeviceName
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.apart import apart, line
from tests.seams.exchange.asking_engine import Answer
from tests.seams.exchange.pair import SIZE, WHOLE


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_what_was_fetched_gives_the_tokens_of_what_was_computed(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    answer = asked(checkpoint, tmp_path, "cuda")
    assert answer.fetched == WHOLE * SIZE
    assert answer.ways == ["device"]
    assert answer.tokens == answer.uncached


def asked(checkpoint: Checkpoint, tmp_path: Path, device: DeviceName) -> Answer:
    """What one says that fetched from the other; both are processes, as are their ranks."""
    where, model = str(tmp_path / "x.sock"), str(checkpoint.model_dir)
    with (
        apart("answering_engine", tmp_path / "answering", model, where, "0", "2", device),
        apart("asking_engine", tmp_path / "asking", model, where, device),
    ):
        return msgspec.json.decode(line(tmp_path / "asking", "{"), type=Answer)
