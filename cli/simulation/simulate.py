"""`ratoon simulate`: the hit rates of caches of given sizes on a request trace."""

import re
import time
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from cli.charts import write_chart
from cli.errors import BadSetting
from cli.load.requests.trace import BlockTrace, among_tenants, faster, read_trace, session_blocks
from cli.models.model_source import config_of
from cli.output import print_result
from cli.plan.decoder import read_decoder
from cli.plan.machine import MachineModel, ModelShape
from cli.progress import Advance, progress_bar
from cli.simulation.drafted_texts import read_texts
from cli.simulation.drafts import replay_drafts, show_drafts
from cli.simulation.options import (
    DraftFlags,
    MachineFlags,
    OutputFlags,
    SimulatedModelFlags,
    SimulatedReplicaFlags,
    TenancyFlags,
    TierTokenFlags,
)
from cli.simulation.replay import EqualParts, Replay, Replayed, TierSizes, admit, partition_of
from cli.simulation.replicas import Costs
from cli.simulation.results import Point, draw, hit_rates, make_report, show
from cli.simulation.routers import (
    Replicas,
    RoutedReport,
    compare,
    draw_hit_rates,
    show_routed,
    variants,
)
from cli.simulation.states import StateCosts, state_costs
from cli.simulation.steps import SimulatedStepBounds
from prefix_cache.names import PolicyName

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def simulate(
    tiers: TierTokenFlags,
    tenancy: TenancyFlags,
    model: SimulatedModelFlags,
    replicas: SimulatedReplicaFlags,
    machine: MachineFlags,
    drafts: DraftFlags,
    output: OutputFlags,
    trace: Annotated[
        Path | None, typer.Argument(help="A file with a JSON object in each line.")
    ] = None,
) -> None:
    """Replay a request trace through the cache's own code; report hit rates and estimated TTFT.

    A line of TRACE is {"timestamp": ms, "input_length": tokens, "output_length": tokens,
    "hash_ids": \\[one for each block]}, optionally with "tenant". Requests are replayed one after
    the other; generated tokens are unknown content and are not cached.

    Example: what a host tier adds for a chat, and a plot of other sizes:

        ratoon simulate chat.jsonl --device-tokens 500000 --host-tokens 500000 --plot chat.svg

    With --replicas, several engines with separate caches are simulated, once for each router;
    times and gaps between tokens are estimated. Here engines fetch, and two only prefill:

        ratoon simulate chat.jsonl --replicas 8 --fetch-gb-s 20 --prefill-replicas 2 --speed 10

    With --drafts, texts are replayed through the drafters alone. A line of the file is {"prompt":
    ..., "answer": ...}, each a text or token ids, optionally with "tenant":

        ratoon simulate --drafts edits.jsonl --tokenizer /models/Qwen3-8B --runs 2
    """
    if drafts.drafts is not None:
        if trace is not None:
            raise BadSetting("TRACE", "texts are replayed in place of a trace; see --drafts")
        _by_draft(drafts.drafts, drafts, tiers.device_tokens, model, machine, as_json=output.json)
        return
    if trace is None:
        raise BadSetting("TRACE", "name a trace, or texts with --drafts")
    read = faster(read_trace(trace, tiers.block_size), replicas.speed)
    if tenancy.tenants:
        read = among_tenants(read, tenancy.tenants, tenancy.tenant_sizes)
    partition = partition_of(read) if tenancy.cache_sharing == "partitioned" else None
    costs = _costs(model)
    _by_trace(read, trace.name, tiers, replicas, costs, machine, partition, output)


def _by_trace(
    read: BlockTrace,
    name: str,
    tiers: TierTokenFlags,
    replicas: SimulatedReplicaFlags,
    costs: tuple[ModelShape, StateCosts | None],
    machine: MachineModel,
    partition: EqualParts | None,
    output: OutputFlags,
) -> None:
    sizes = TierSizes(tiers.device_tokens, tiers.host_tokens, tiers.disk_tokens)
    if sizes.device < tiers.block_size:
        raise BadSetting("--device-tokens", f"no block of {tiers.block_size} tokens fits")
    replicas.check()
    totals = _totals(output.sizes, sizes, tiers.block_size, is_drawn=bool(output.plot))
    each = [sizes.scaled(total) for total in totals]
    shape, states = costs
    if replicas.replicas > 1:
        if states is not None:
            raise BadSetting("--model", "several replicas are simulated without recurrent states")
        common = _replicas(read, replicas, tiers, shape, machine, partition)
        _by_router(read, common, replicas, [sizes, *each], output)
        return
    policies = dict.fromkeys((tiers.policy, "lru") if output.plot else (tiers.policy,))
    simulation = _Simulation(read, tiers.block_size, partition, states)
    replays = 1 + len(each) * len(policies)
    with progress_bar("blocks", replays * read.num_blocks) as advance:
        run = simulation.run(tiers.policy, sizes, advance)
        curves: dict[str, list[Point]] = {
            policy: simulation.curve(policy, each, advance) for policy in policies
        }
    if output.plot:
        write_chart(output.plot, draw(curves, f"{name}: hit rate against size"))
    report = make_report(run, shape, machine, curves[tiers.policy])
    print_result(report, show, as_json=output.json)


def _costs(flags: SimulatedModelFlags) -> tuple[ModelShape, StateCosts | None]:
    """Return the costs of the model, or of an 8B model if none is given."""
    if flags.model is None:
        return ModelShape(), None
    decoder = read_decoder(config_of(flags.model))
    return decoder.shape, state_costs(decoder, flags.state_cache_ratio)


def _by_draft(
    file: Path,
    flags: DraftFlags,
    device_tokens: int,
    model: SimulatedModelFlags,
    machine: MachineModel,
    *,
    as_json: bool,
) -> None:
    tokenizer = flags.tokenizer or Path(str(files("handbook") / "model"))
    texts = read_texts(file, tokenizer)
    shape, _ = _costs(model)
    reports = replay_drafts(texts, flags.runs, device_tokens, shape, machine)
    print_result(reports, partial(show_drafts, file), as_json=as_json)


def _by_router(
    trace: BlockTrace,
    replicas: Replicas,
    flags: SimulatedReplicaFlags,
    sizes: Sequence[TierSizes],
    output: OutputFlags,
) -> None:
    admitted, started_at = admit(trace), time.perf_counter()
    behind = variants(flags.router, fetches=flags.fetch_gb_s > 0, prefill=flags.prefill_replicas)
    chosen_one = next(one.label for one in reversed(behind) if one.router == flags.router)
    replays = len(sizes) * (1 + len(behind))
    with progress_bar("blocks", replays * trace.num_blocks) as advance:
        compared = [compare(replicas, behind, chosen_one, one, admitted, advance) for one in sizes]
    chosen = compared[0].chosen
    seconds = time.perf_counter() - started_at
    chosen.blocks_per_second = replays * trace.num_blocks / seconds
    by_size = [point for one in compared[1:] for point in one.points]
    title = f"{replicas.count} replicas"
    if output.plot:
        write_chart(output.plot, draw_hit_rates(by_size, f"{title}: hit rate against size"))
    together = make_report(chosen, replicas.costs.shape, replicas.costs.machine, [])
    report = RoutedReport(replicas.count, chosen_one, compared[0].routed, by_size, together)
    print_result(report, show_routed, as_json=output.json)


def _replicas(
    trace: BlockTrace,
    flags: SimulatedReplicaFlags,
    tiers: TierTokenFlags,
    shape: ModelShape,
    machine: MachineModel,
    partition: EqualParts | None,
) -> Replicas:
    target_s = flags.target_itl_ms / 1000 or SimulatedStepBounds().max_step_s
    step = SimulatedStepBounds(max_step_s=target_s)
    return Replicas(
        count=flags.replicas,
        policy=tiers.policy,
        costs=Costs(shape, machine, tiers.block_size, flags.fetch_gb_s, step=step),
        session_blocks=session_blocks(trace),
        partition=partition,
        gateways=flags.gateways,
    )


class _Simulation:
    def __init__(
        self,
        trace: BlockTrace,
        block_size: int,
        partition: EqualParts | None,
        states: StateCosts | None,
    ) -> None:
        self._partition, self._states = partition, states
        self._admitted = admit(trace)
        self._num_blocks = trace.num_blocks
        self._block_size = block_size

    def run(self, policy: PolicyName, sizes: TierSizes, advance: Advance) -> Replayed:
        replay = Replay(self._block_size, sizes, policy, self._partition, self._states)
        started_at = time.perf_counter()
        replayed = replay.run(self._admitted, advance)
        replayed.blocks_per_second = self._num_blocks / (time.perf_counter() - started_at)
        replay.check()
        return replayed

    def curve(self, policy: PolicyName, each: Sequence[TierSizes], advance: Advance) -> list[Point]:
        rates = [hit_rates(self.run(policy, sizes, advance).served) for sizes in each]
        return [
            Point(sizes.total, rate.token_hit_rate) for sizes, rate in zip(each, rates, strict=True)
        ]


def parse_tokens(text: str) -> int:
    """Read '250k' as 250,000 and '1.5M' as 1,500,000. Raises BadSetting."""
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
