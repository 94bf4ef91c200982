"""An engine whose first stage is on another machine: two processes that share no memory."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.link.address import host_and_port
from engine.models.errors import WrongSetting
from engine.ranks.team import RankNotStarted, started_ranks
from engine.startup.lower_tiers import RANK_PREFIX
from engine.startup.outline import outline_model
from tests.doubles.processes import descendants
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.nodes import HERE, THERE, NodesAt, node_ranks, nodes_at, running_node
from tests.seams.ranks.test_stages import STAGES
from tests.seams.ranks.test_tiers import DOWN
from tests.seams.support.mix import NAMESPACES, Alone, Ask, run_mix
from tests.seams.support.real_engine import Bounds, ExchangeAt, RealEngine, config_of

BOTH = replace(STAGES, ranks=2)  # each machine has a stage, of two ranks that divide its layers


@dataclass(frozen=True)
class TwoMachines:
    """Where the second one comes to, and its process."""

    at: NodesAt
    node: subprocess.Popen[bytes]
    directory: Path

    def engine(self, checkpoint: Checkpoint, pressing: Bounds = BOTH) -> RealEngine:
        """An engine on both, with its own disk on each."""
        disk = self.directory / "blocks"
        return RealEngine(
            str(checkpoint.model_dir),
            pressing,
            disk=disk,
            start_ranks=node_ranks,
            over=self.at.over,
        )

    @property
    def ranks(self) -> list[int]:
        """The process ids of the two ranks on the second one."""
        found = [pid for pid, line in descendants(self.node.pid) if "engine.ranks\0" in line]
        assert len(found) == 2
        return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Iterator[TwoMachines]:
    directory = tmp_path_factory.mktemp("nodes")
    at = nodes_at(directory)
    with running_node(at, checkpoint.model_dir, directory / "there") as node:
        yield TwoMachines(at, node, directory)


def rings_of(pid: int) -> set[int]:
    """The rings that a process has mapped, by their inodes."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in maps if "ratoon-ring" in line}


def listening_of(pid: int) -> set[str]:
    """The addresses at which a process listens over TCP; of IPv6 as the kernel has them."""
    links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:  # listens
                found.add(fields[1].partition(":")[0])
    return {socket.inet_ntoa(bytes.fromhex(one)[::-1]) if len(one) == 8 else one for one in found}


def test_the_tokens_are_those_of_one_process(
    two: TwoMachines, checkpoint: Checkpoint, alone: Alone
) -> None:
    """That a restart is warm is tested with a server (`test_node_deaths`)."""
    mix = [Ask(i % 8, 30 + i % 10, (5, 6, i % 7), 12, NAMESPACES[i % 2], None) for i in range(16)]
    with closing(two.engine(checkpoint, replace(BOTH, num_blocks=6, host_blocks=5))) as engine:
        expect_nothing_in_common(two)
        for rank in two.ranks:
            assert listening_of(rank) == {THERE, HERE}, "ranks of a stage are on one machine"
        run_mix(engine, mix)
        assert [engine.tokens(str(n)) for n in range(16)] == [alone(ask) for ask in mix]
        moved = {(way.source, way.target): way.blocks for way in engine.core.stats().tiers.ways}
        assert moved[DOWN] > 0
        engine.core.spill(5.0)
    assert two.node.poll() is None, "the node stays, for the next engine"
    assert ranks_in(two.directory / "blocks") == {"rank-1"}
    assert ranks_in(two.directory / "there" / "blocks") == {"rank-2", "rank-3"}


def ranks_in(blocks: Path) -> set[str]:
    """Those that have a disk there, beside rank 0."""
    return {path.name for path in blocks.glob(f"{RANK_PREFIX}*")}


def expect_nothing_in_common(two: TwoMachines) -> None:
    """Neither the ring nor its memory: what reaches the rank came over TCP."""
    [relay] = [pid for pid, line in descendants(os.getpid()) if "nodes.relay" in line]
    ours, theirs = rings_of(os.getpid()), rings_of(two.ranks[0])
    assert rings_of(two.ranks[1]) == theirs, "the control: these have one in common"
    assert rings_of(relay) <= ours
    assert rings_of(relay), "the control: what is shared is seen"
    assert theirs
    assert not theirs & ours


class TestRefused:
    """In one line that says why."""

    def test_a_machine_that_does_not_come(self, tmp_path: Path, checkpoint: Checkpoint) -> None:
        at = replace(nodes_at(tmp_path), wait_s=0.3)
        line = f"^rank 1: node 1 has not come to {at.place} within 0.3 s$"
        config, said = config_on(checkpoint, at), list[str]()
        with (
            pytest.raises(RankNotStarted, match=line),
            started_ranks(config, outline_model(config), waits_for=said.append),
        ):
            raise AssertionError("there is no node")
        command = f"ratoon node --node-rank 1 --join {at.place}"
        assert said == [f"the engine waits for node 1 of 2: {command}"]

    def test_an_address_that_is_not_of_here_or_is_taken(
        self, tmp_path: Path, checkpoint: Checkpoint
    ) -> None:
        at = nodes_at(tmp_path)
        elsewhere = replace(at, place="tcp://192.0.2.1:7400")
        with pytest.raises(WrongSetting, match=r"^node_address 192\.0\.2\.1: Cannot assign"):
            node_ranks(config_on(checkpoint, elsewhere))
        _, port = host_and_port(at.place)
        line = f"^rank 1: .*{at.place}: Address already"
        with socket.create_server((HERE, port)), pytest.raises(RankNotStarted, match=line):
            node_ranks(config_on(checkpoint, at))


def config_on(checkpoint: Checkpoint, at: NodesAt) -> EngineConfig:
    return at.over(config_of(str(checkpoint.model_dir), STAGES, None, ExchangeAt()))
