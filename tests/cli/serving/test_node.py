"""`ratoon node`: what is of its own machine, and what keeps it from coming to an engine."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from cli.errors import BadSetting
from cli.options.options import ModelFlags
from cli.serving.node import NodeFlags, node_config
from engine.ranks.nodes.config import NodeConfig
from tests.engine.rigs.nodes import new_key_file

AT = "tcp://10.0.0.1:7400"


def test_it_has_its_own_model_key_and_disk(tmp_path: Path) -> None:
    key_file = new_key_file(tmp_path)
    model = ModelFlags(data_dir=tmp_path)
    config = NodeConfig(
        join=AT,
        node_rank=1,
        host=None,
        key_file=str(key_file),
        model_dir=str(files("handbook") / "model"),
        disk_cache_dir=str(tmp_path / "blocks"),
    )
    assert node_config(model, NodeFlags(join=AT)) == config
    named = NodeFlags(
        join=AT, node_rank=2, node_host="10.0.0.2", node_silence_s=3.0, disk_cache_dir="/fast"
    )
    assert (found := node_config(model, named)).node_rank == 2
    assert (found.host, found.silence_s, found.disk_cache_dir) == ("10.0.0.2", 3.0, "/fast")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "::", "*"])
def test_hidden_states_are_not_listened_for_everywhere(tmp_path: Path, host: str) -> None:
    """What goes between stages asks nobody for a key."""
    new_key_file(tmp_path)
    model = ModelFlags(data_dir=tmp_path)
    assert node_config(model, NodeFlags(join=AT, node_host="10.0.0.2")).host, "the control"
    with pytest.raises(BadSetting, match=f"^--node-host: {re.escape(host)}: name one address"):
        node_config(model, NodeFlags(join=AT, node_host=host))


@pytest.mark.parametrize(
    ("join", "says"),
    [
        (None, "--join: the --node-address of the engine is needed"),
        ("10.0.0.1:7400", "--join: '10.0.0.1:7400' is not tcp://HOST:PORT"),
        ("tcp://0.0.0.0:7400", "--join: tcp://0.0.0.0:7400: name one address"),
        (AT, "--link-key-file: .*link.key cannot be read: .*copied from there"),
    ],
)
def test_refusals(tmp_path: Path, join: str | None, says: str) -> None:
    flags = replace(NodeFlags(), join=join)
    with pytest.raises(BadSetting, match=f"^{says}"):
        node_config(ModelFlags(data_dir=tmp_path), flags)
