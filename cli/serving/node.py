"""`ratoon node`: stages of an engine that is on another machine.

What is computed, and how, comes from there; this command knows what is of its own machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from cli.errors import BadSetting
from cli.options.config_file import ConfigFile
from cli.options.engine_options import ENGINE_DEFAULTS, MAX_NODE_SILENCE_S
from cli.options.flags import field
from cli.options.options import ModelFlags
from cli.serving.compose import BLOCKS_NAME, check_node_address
from cli.serving.link_key import link_key_file
from cli.serving.model_check import checked_source
from cli.serving.serve import become
from engine.config import LoadFormat
from engine.link.address import EVERYWHERE
from engine.models.shards import MOST_RANKS
from engine.ranks.nodes.config import NodeConfig

_PANEL = "Node"


@dataclass(frozen=True, slots=True)
class NodeFlags:
    """What a machine says of itself that runs part of an engine."""

    join: str | None = field(
        None, "The --node-address of the engine, tcp://HOST:PORT.", panel=_PANEL
    )
    node_rank: int = field(
        1,
        "Which of the machines this is, from 1 on; the engine's own is 0. Each keeps its number, "
        "and with it the blocks on its disk.",
        panel=_PANEL,
        min=1,
        max=MOST_RANKS - 1,
    )
    node_host: str | None = field(
        None,
        "The address of this machine by which the others reach it. Left out: the one from which "
        "--join is reached.",
        panel=_PANEL,
    )
    link_key_file: Path | None = field(
        None,
        "The key of the engine's machine, copied from there. "
        "[dim]\\[default: DATA_DIR/link.key][/dim]",
        panel=_PANEL,
        show_default=False,
    )
    node_silence_s: float = field(
        10.0,
        "Seconds without an answer after which the engine's machine counts as gone.",
        panel=_PANEL,
        min=1.0,
        max=MAX_NODE_SILENCE_S,
    )
    disk_cache_dir: str | None = field(
        None,
        "Directory for this machine's part of the blocks on disk. "
        "[dim]\\[default: DATA_DIR/blocks][/dim]",
        panel=_PANEL,
        show_default=False,
    )
    load_format: LoadFormat = field(
        "safetensors", "'dummy' where the engine has it: no weights are needed.", panel=_PANEL
    )


def node(model: ModelFlags, node: NodeFlags, config_file: ConfigFile = None) -> None:
    """Run part of an engine that is on another machine ('ratoon serve --nnodes').

    It comes to --join, runs the stages that it is given, and comes again when the engine has ended,
    for the next one. All settings but those here are the engine's. The model's files must be the
    same on all machines, and so must the key.

    Example:

        ratoon node --model ~/models/qwen3-8b --join tcp://10.0.0.1:7400 --link-key-file link.key
    """
    del config_file  # its settings are the flags' defaults by now
    become("engine.ranks.nodes", node_config(model, node))


def node_config(model: ModelFlags, flags: NodeFlags) -> NodeConfig:
    """What the node's process is told. BadSetting, ModelNotFound, ModelRefused."""
    if flags.join is None:
        raise BadSetting("--join", "the --node-address of the engine is needed")
    check_node_address("--join", flags.join)
    if flags.node_host in (*EVERYWHERE, "::"):
        raise BadSetting("--node-host", f"{flags.node_host}: name one address of this machine")
    key_file = link_key_file(flags.join, flags.link_key_file, model.data_dir, make=False)
    assert key_file is not None, "it is an address over TCP"
    source = checked_source(model.model, replace(ENGINE_DEFAULTS, load_format=flags.load_format))
    blocks = Path(flags.disk_cache_dir or model.data_dir / BLOCKS_NAME)
    return NodeConfig(
        join=flags.join,
        node_rank=flags.node_rank,
        host=flags.node_host,
        key_file=key_file,
        model_dir=str(source.directory),
        disk_cache_dir=str(blocks.absolute()),
        silence_s=flags.node_silence_s,
    )
