"""Routers side by side on a trace, and one cache as large as all replicas' caches.

    python -m benchmarks.simulated.routers TRACE --replicas 8 [--speed 10] [--gateways 8]
    python -m benchmarks.simulated.routers TRACE --fetch-gb-s 20 --prefill-replicas 4 --speed 10

TRACE is as `ratoon simulate` reads it; the replicas are engines of an 8B on an H200, estimated.
Prints one JSON line for each router, and with fetching or with replicas that only prefill for
--router with these: the share of prompt tokens that were cached, also over that of the one cache;
the prompt tokens that the busiest replica computed over the mean; times of first tokens, queues
included, and gaps between tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from benchmarks.record import emit
from benchmarks.simulated.gateways import GatewaysRouter
from benchmarks.simulated.replicas import Costs, ReplicaSet, SimulatedReplica
from benchmarks.simulated.steps import SimulatedStepBounds, VirtualClock, gap_at
from cli.load.percentiles import percentile
from cli.load.requests.trace import BlockTrace, common_blocks, read_trace
from cli.options.flags import flattened
from cli.plan.machine import MachineModel, ModelShape
from cli.simulation.replay import CopyClock, KeyedRequest, Replay, Replayed, TierSizes, admit
from cli.simulation.results import hit_rates
from engine.link.messages import Role
from gateway.routing.by_name import ROUTERS, RouterName, router_by_name
from gateway.routing.router import Router

_SEED = 1


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The engines, and how fast requests come and blocks travel."""

    replicas: Annotated[int, typer.Option(min=2, help="Engines, each with a cache.")] = 8
    router: RouterName = "first-token"
    device_tokens: Annotated[int, typer.Option(help="Tokens of each cache.")] = 500_000
    block_size: Annotated[int, typer.Option(help="Tokens that one id stands for.")] = 512
    speed: Annotated[float, typer.Option(help="Times as fast as in the trace.")] = 1.0
    fetch_gb_s: Annotated[float, typer.Option(help="GB/s between replicas; 0: none.")] = 0.0
    prefill_replicas: Annotated[int, typer.Option(help="Replicas that only prefill.")] = 0
    gateways: Annotated[int, typer.Option(help="Gateways, each with its router.")] = 1
    max_step_ms: Annotated[float, typer.Option(help="Most of a step that decodes.")] = 60.0


@dataclass(frozen=True, slots=True)
class RouterVariant:
    """A router, and the cooperation of its replicas."""

    label: str
    router: RouterName
    fetches: bool = False
    prefill: int = 0  # replicas that only prefill


def variants(asked: ReplicaOptions) -> Iterator[RouterVariant]:
    """Yield all routers, then the chosen router with the requested cooperation."""
    for name in ROUTERS:
        yield RouterVariant(name, name)
    if asked.fetch_gb_s:
        yield RouterVariant(f"{asked.router}, fetching", asked.router, fetches=True)
    if asked.prefill_replicas:
        label = f"{asked.router}, {asked.prefill_replicas} for prompts"
        yield RouterVariant(label, asked.router, True, asked.prefill_replicas)


def faster(trace: BlockTrace, speed: float) -> BlockTrace:
    """Shorten the gaps between the trace's requests by the factor `speed`."""
    requests = tuple(replace(request, at=request.at / speed) for request in trace.requests)
    return BlockTrace(requests, trace.block_size)


def behind(variant: RouterVariant, asked: ReplicaOptions, trace: BlockTrace) -> ReplicaSet:
    """Replay a trace through the replicas behind a router."""
    clock = VirtualClock()
    costs = Costs(
        ModelShape(),
        MachineModel(),
        asked.block_size,
        asked.fetch_gb_s if variant.fetches else 0.0,
        step=SimulatedStepBounds(max_step_s=asked.max_step_ms / 1000),
    )
    other: Role = "decode" if variant.prefill else "both"
    members = [
        SimulatedReplica(
            f"replica-{number}",
            _replay(asked, asked.device_tokens),
            costs,
            clock,
            "prefill" if number < variant.prefill else other,
        )
        for number in range(asked.replicas)
    ]
    replicas = ReplicaSet(_router(variant.router, asked, clock, trace), clock, members, costs)
    replicas.run(admit(trace), lambda _: None)
    for one in members:
        one.replay.check()
    return replicas


def in_one(asked: ReplicaOptions, admitted: Sequence[KeyedRequest]) -> float:
    """Return the hit rate of one cache as large as all replicas' caches."""
    together = _replay(asked, asked.replicas * asked.device_tokens)
    return hit_rates(together.run(admitted, lambda _: None).served).token_hit_rate


def _router(
    name: RouterName, asked: ReplicaOptions, clock: VirtualClock, trace: BlockTrace
) -> Router:
    session_blocks = common_blocks(trace.requests) + 1
    routers = [
        router_by_name(name, clock, seed=_SEED + gateway, session_blocks=session_blocks)
        for gateway in range(asked.gateways)
    ]
    return GatewaysRouter(routers) if len(routers) > 1 else routers[0]


def _replay(asked: ReplicaOptions, tokens: int) -> Replay:
    return Replay(asked.block_size, TierSizes(tokens), "lru", CopyClock())


def imbalance(each: Sequence[Replayed]) -> float:
    """Return the busiest replica's computed prompt tokens, divided by the mean."""
    computed = [sum(one.computed for one in run.served) for run in each]
    mean = fmean(computed)
    return max(computed) / mean if mean else 1.0


def report(label: str, replicas: ReplicaSet, one_cache: float) -> None:
    """Print a router's results."""
    found = hit_rates(replicas.served)
    tokens, gaps = found.input_tokens, replicas.gaps
    emit(
        label,
        token_hit_rate=found.token_hit_rate,
        of_one_cache=found.token_hit_rate / one_cache if one_cache else 1.0,
        busiest_by_mean=imbalance(replicas.replayed()),
        fetched=sum(one.fetched for one in replicas.served) / tokens,
        remote_prefills=replicas.remote_prefills / len(replicas.served),
        ttft_mean_ms=1000 * fmean(replicas.ttft_s),
        ttft_p99_ms=1000 * percentile(replicas.ttft_s, 99),
        gap_mean_ms=1000
        * sum(one.seconds * one.tokens for one in gaps)
        / max(sum(one.tokens for one in gaps), 1),
        gap_p99_ms=1000 * gap_at(gaps, 99),
    )


def check(asked: ReplicaOptions) -> None:
    """Raise BadParameter for roles that exclude each other."""
    if asked.prefill_replicas and not asked.fetch_gb_s:
        raise typer.BadParameter("--prefill-replicas: their blocks travel; see --fetch-gb-s")
    if asked.prefill_replicas >= asked.replicas:
        raise typer.BadParameter("--prefill-replicas: at least one replica has to answer")


def main(trace: Annotated[Path, typer.Argument()], asked: ReplicaOptions) -> None:
    """Replay a trace behind each router; print a JSON line for each."""
    check(asked)
    read = faster(read_trace(trace, asked.block_size), asked.speed)
    one_cache = in_one(asked, admit(read))
    emit("one cache", token_hit_rate=one_cache)
    for variant in variants(asked):
        report(variant.label, behind(variant, asked, read), one_cache)


if __name__ == "__main__":
    typer.run(flattened(main))
