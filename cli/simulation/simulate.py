"""`ratoon simulate`: the hit rates of caches of given sizes on a request trace."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.charts import write_chart
from cli.errors import BadSetting
from cli.load.requests.trace import BlockTrace, among_tenants, read_trace
from cli.output import print_result
from cli.plan.decoder import read_decoder
from cli.plan.machine import MachineModel, ModelShape
from cli.progress import Advance, progress_bar
from cli.serving.model_source import config_of
from cli.simulation.options import (
    MachineFlags,
    OutputFlags,
    ShapeFlags,
    SimulatedModelFlags,
    TenancyFlags,
    TierTokenFlags,
)
from cli.simulation.replay import (
    CopyClock,
    EqualParts,
    Replay,
    Replayed,
    TierSizes,
    Way,
    admit,
    partition_of,
)
from cli.simulation.results import Point, draw, hit_rates, make_report, show
from cli.simulation.states import StateCosts, state_costs
from prefix_cache.names import PolicyName
from storage.move import Tier

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def simulate(
    trace: Annotated[Path, typer.Argument(help="A file with one JSON object a line.")],
    tiers: TierTokenFlags,
    tenancy: TenancyFlags,
    model: SimulatedModelFlags,
    shape: ShapeFlags,
    machine: MachineFlags,
    output: OutputFlags,
) -> None:
    """Replay a request trace through the cache's own code; report hit rates and estimated TTFT.

    A line of TRACE is {"timestamp": ms, "input_length": tokens, "output_length": tokens,
    "hash_ids": \\[one for each block]}, optionally with "tenant". Requests are replayed one after
    the other; generated tokens are unknown content and are not cached.

    Example: what a host tier adds for a chat, and a plot of other sizes:

        ratoon simulate chat.jsonl --device-tokens 500000 --host-tokens 500000 --plot chat.svg
    """
    shape, states = _costs(model, shape)
    read = read_trace(trace, tiers.block_size)
    if tenancy.tenants:
        read = among_tenants(read, tenancy.tenants, tenancy.tenant_sizes)
    partition = partition_of(read) if tenancy.cache_sharing == "partitioned" else None
    sizes = TierSizes(tiers.device_tokens, tiers.host_tokens, tiers.disk_tokens)
    if sizes.device < tiers.block_size:
        raise BadSetting("--device-tokens", f"no block of {tiers.block_size} tokens fits")
    totals = _totals(output.sizes, sizes, tiers.block_size, is_drawn=bool(output.plot))
    each = [sizes.scaled(total) for total in totals]
    policies = dict.fromkeys((tiers.policy, "lru") if output.plot else (tiers.policy,))
    simulation = _Simulation(read, tiers, partition, shape, machine, states)
    replays = 1 + len(each) * len(policies)
    with progress_bar("blocks", replays * read.num_blocks) as advance:
        run = simulation.run(tiers.policy, sizes, advance)
        curves: dict[str, list[Point]] = {
            policy: simulation.curve(policy, each, advance) for policy in policies
        }
    if output.plot:
        write_chart(output.plot, draw(curves, f"{trace.name}: hit rate against size"))
    report = make_report(run, shape, machine, curves[tiers.policy])
    print_result(report, show, as_json=output.json)


def _costs(flags: SimulatedModelFlags, shape: ModelShape) -> tuple[ModelShape, StateCosts | None]:
    """Read a model's costs, which replace those of `shape`; raise BadSetting if both are given."""
    if flags.model is None:
        return shape, None
    if shape != ModelShape():
        raise BadSetting("--model", "its config.json has the costs that other flags give, too")
    decoder = read_decoder(config_of(flags.model))
    return decoder.shape, state_costs(decoder, flags.state_cache_ratio)


class _Simulation:
    """A trace, and the common settings of its replays."""

    def __init__(
        self,
        trace: BlockTrace,
        tiers: TierTokenFlags,
        partition: EqualParts | None,
        shape: ModelShape,
        machine: MachineModel,
        states: StateCosts | None,
    ) -> None:
        self._partition, self._states = partition, states
        self._admitted = admit(trace)
        self._num_blocks = trace.num_blocks
        self._block_size = tiers.block_size
        self._seconds = _seconds_per_block(tiers, shape, machine)

    def run(self, policy: PolicyName, sizes: TierSizes, advance: Advance) -> Replayed:
        """Replay the trace once."""
        clock = CopyClock(self._seconds)
        replay = Replay(self._block_size, sizes, policy, clock, self._partition, self._states)
        started_at = time.perf_counter()
        replayed = replay.run(self._admitted, advance)
        replayed.blocks_per_second = self._num_blocks / (time.perf_counter() - started_at)
        replay.check()
        return replayed

    def curve(self, policy: PolicyName, each: Sequence[TierSizes], advance: Advance) -> list[Point]:
        """Replay the trace once for each of these sizes."""
        rates = [hit_rates(self.run(policy, sizes, advance).served) for sizes in each]
        return [
            Point(sizes.total, rate.token_hit_rate) for sizes, rate in zip(each, rates, strict=True)
        ]


def parse_tokens(text: str) -> int:
    """Read '250k' as 250,000 and '1.5M' as 1,500,000; raise BadSetting."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    if found is None:
        raise BadSetting("--sizes", f"{text!r} is not a number of tokens such as 250k or 1M")
    return int(float(found[1]) * UNITS[found[2].lower()])


def _totals(listed: str, sizes: TierSizes, block_size: int, is_drawn: bool) -> list[int]:
    totals = [parse_tokens(one) for one in listed.split(",")] if listed else []
    if is_drawn and not totals:
        totals = [int(sizes.total * multiple) for multiple in MULTIPLES]
    for total in totals:
        if sizes.scaled(total).device < block_size:
            raise BadSetting(
                "--sizes", f"with {total} tokens in all, not one block fits the device tier"
            )
    return totals


def _seconds_per_block(
    tiers: TierTokenFlags, shape: ModelShape, machine: MachineModel
) -> dict[Way, float] | None:
    if tiers.settle == "at-once":
        return None
    host = machine.load_seconds(shape, tiers.block_size)
    disk = machine.load_seconds(shape, 0, tiers.block_size)
    return {
        (Tier.DEVICE, Tier.HOST): host,
        (Tier.HOST, Tier.DEVICE): host,
        (Tier.DEVICE, Tier.DISK): disk,
        (Tier.HOST, Tier.DISK): disk,
        (Tier.DISK, Tier.DEVICE): disk,
    }
