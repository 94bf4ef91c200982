"""The health check of an engine, before engines that answer, hang, and are not there."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from engine.alive import is_alive, main
from tests.doubles.engine_thread import EngineThread


async def test_an_engine_that_answers_is_alive(tmp_path: Path) -> None:
    path = str(tmp_path / "engine.sock")
    with EngineThread(path):
        assert await is_alive(path)
        assert await asyncio.to_thread(main, [path]) == 0


async def test_an_engine_that_is_not_there_is_not_alive(tmp_path: Path) -> None:
    assert not await is_alive(str(tmp_path / "engine.sock"), patience_s=0.2)


async def test_a_process_that_only_listens_is_not_alive(tmp_path: Path) -> None:
    path = str(tmp_path / "engine.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        assert not await is_alive(path, patience_s=0.2)
