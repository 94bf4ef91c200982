"""A rank that cannot start, or loses its peers, ends with a line that gives the reason."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.follower.serving import serve
from engine.process import EXIT_BROKEN
from engine.ranks.collectives import Rendezvous
from engine.ranks.groups import meet
from engine.ranks.messages import ENCODER, Start
from engine.ranks.ring import RingWriter
from engine.startup.metadata import read_metadata
from storage.disk.wire import Channel
from tests.engine.rigs.ranks import CPU, PATIENCE

HANDBOOK = Path(__file__).parents[3] / "handbook" / "model"


def test_a_rank_that_is_left_alone_says_so_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig.of(
        model_dir=str(HANDBOOK), socket="", device="cpu", cache_tokens=1024, tensor_parallel=2
    )
    file = os.memfd_create("ranks", os.MFD_CLOEXEC)
    place = f"/proc/self/fd/{file}"
    ours, its_own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(RingWriter(1)) as ring, ours, its_own, ThreadPoolExecutor(1) as thread:
        Channel(ours).send(ENCODER.encode(Start(config, 1, ring.ends[0], place)))
        status = thread.submit(serve, Channel(its_own))
        metadata = read_metadata(config)
        here = Rendezvous(place, 0, 2, PATIENCE)
        meet(here, metadata.grid, metadata.stage, CPU).close()  # ends the rank as its process would
        assert status.result(PATIENCE.total_seconds()) == EXIT_BROKEN
    os.close(file)
    said = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(said) == 1
    assert said[0].startswith("this rank ends: another one is gone (")
    assert "\n" not in said[0]
