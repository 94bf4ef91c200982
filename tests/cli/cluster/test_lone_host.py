"""A registered engine announces its address, listened on or given. Its death is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.cluster.lone_host import advertised, host_engine
from cli.errors import BadSetting
from cli.options.engine_options import RegisterFlags
from engine.config import EngineConfig
from engine.process import EXIT_NOT_SERVED


def test_it_is_where_the_engine_listens_unless_another_is_given() -> None:
    assert advertised("tcp://10.0.0.7:7300", None) == "tcp://10.0.0.7:7300"
    assert advertised("tcp://0.0.0.0:7300", "tcp://10.0.0.7:7300") == "tcp://10.0.0.7:7300"
    assert advertised("e.sock", None) == str(Path("e.sock").absolute())


@pytest.mark.parametrize("socket", ["tcp://0.0.0.0:7300", "tcp://[::]:7300", "tcp://*:7300"])
def test_one_that_listens_everywhere_must_be_given_one(socket: str) -> None:
    with pytest.raises(BadSetting, match="--advertise: name the address that gateways are to use"):
        advertised(socket, None)


def test_an_engine_that_ends_by_itself_does_not_go_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = EngineConfig.of(model_dir=str(tmp_path / "nowhere"), socket=str(tmp_path / "e.sock"))
    status = host_engine(config, tmp_path / "data", RegisterFlags(register=True))
    assert status == EXIT_NOT_SERVED
    assert capfd.readouterr().err.endswith(f"ratoon: the engine ended with status {status}\n")
