"""A comparison of routers on a trace, and of one cache as large as all replicas' caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cli.charts import draw_curves
from cli.load.percentiles import Summary, summarise
from cli.output import print_table
from cli.progress import Advance
from cli.simulation.gateways import GatewaysRouter
from cli.simulation.replay import EqualParts, KeyedRequest, Replay, Replayed, TierSizes
from cli.simulation.replicas import Costs, ReplicaSet, SimulatedReplica
from cli.simulation.results import SimulationReport, hit_rates, show
from cli.simulation.steps import Gap, VirtualClock, gap_at
from engine.link.messages import Role
from gateway.routing.router import Router
from gateway.routing.routers.by_name import ROUTERS, RouterName, router_by_name
from prefix_cache.names import PolicyName

ONE_CACHE = "one cache"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Milliseconds between successive tokens of an answer."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class RoutedTrace:
    """The results of a trace on replicas with one router. Times include waits in queues."""

    router: str
    token_hit_rate: float  # cached share of prompt tokens, where fetched tokens count as cached
    of_one_cache: float  # hit rate, divided by the hit rate of one cache as large as all caches
    # prompt tokens computed by the busiest replica, divided by the mean over replicas
    imbalance: float
    ttft_ms: Summary | None
    gaps_ms: Gaps | None = None
    fetched: float = 0.0
    remote_prefills: float = 0.0


@dataclass(frozen=True, slots=True)
class RoutedPoint:
    """The results of a router with replicas of one size."""

    router: str
    tokens: int
    token_hit_rate: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class RoutedReport:
    """The full results of one router, and the main results of the other routers."""

    replicas: int
    router: str
    by_router: list[RoutedTrace]
    by_size: list[RoutedPoint]
    together: SimulationReport


@dataclass(frozen=True, slots=True)
class RouterVariant:
    """A router, with flags for whether its replicas fetch blocks and prefill for each other."""

    label: str
    router: RouterName
    fetches: bool = False
    prefill: int = 0


def variants(chosen: RouterName, *, fetches: bool, prefill: int) -> list[RouterVariant]:
    """List all routers, and the chosen router with fetches or prefills between replicas."""
    found = [RouterVariant(name, name) for name in ROUTERS]
    if fetches:
        found.append(RouterVariant(f"{chosen}, fetching", chosen, fetches=True))
    if prefill:
        found.append(RouterVariant(f"{chosen}, {prefill} for prompts", chosen, True, prefill))
    return found


@dataclass(frozen=True, slots=True)
class Replicas:
    """The common settings of a simulation's replicas."""

    count: int
    policy: PolicyName
    costs: Costs
    # number of leading blocks from which the session router tells sessions apart
    session_blocks: int
    partition: EqualParts | None
    gateways: int = 1

    def behind(
        self,
        variant: RouterVariant,
        sizes: TierSizes,
        admitted: Sequence[KeyedRequest],
        advance: Advance,
    ) -> ReplicaSet:
        """Replay all requests through the replicas behind a router."""
        clock = VirtualClock()
        costs = self.costs if variant.fetches else replace(self.costs, fetch_gb_s=0.0)
        members = [
            SimulatedReplica(f"replica-{n}", self._replay(sizes), costs, clock, role)
            for n, role in enumerate(self._roles(variant.prefill))
        ]
        replicas = ReplicaSet(self._router(variant.router, clock), clock, members, costs)
        replicas.run(admitted, advance)
        for one in members:
            one.replay.check()
        return replicas

    def in_one(
        self, sizes: TierSizes, admitted: Sequence[KeyedRequest], advance: Advance
    ) -> Replayed:
        """Replay all requests through one cache as large as all replicas' caches."""
        together = TierSizes(*(self.count * n for n in (sizes.device, sizes.host, sizes.disk)))
        return self._replay(together).run(admitted, advance)

    def _router(self, name: RouterName, clock: VirtualClock) -> Router:
        routers = [
            router_by_name(name, clock, session_blocks=self.session_blocks)
            for _ in range(self.gateways)
        ]
        return GatewaysRouter(routers) if len(routers) > 1 else routers[0]

    def _roles(self, prefill: int) -> list[Role]:
        other: Role = "decode" if prefill else "both"
        return ["prefill" if number < prefill else other for number in range(self.count)]

    def _replay(self, sizes: TierSizes) -> Replay:
        return Replay(self.costs.block_size, sizes, self.policy, self.partition)


@dataclass(frozen=True, slots=True)
class RouterComparison:
    """The results of all routers at one replica size."""

    sizes: TierSizes
    routed: list[RoutedTrace]
    chosen: Replayed

    @property
    def points(self) -> list[RoutedPoint]:
        """The results of each router at this size, for lists and plots."""
        size = self.sizes.total
        return [RoutedPoint(r.router, size, r.token_hit_rate, r.imbalance) for r in self.routed]


def compare(
    replicas: Replicas,
    behind: Sequence[RouterVariant],
    router: str,
    sizes: TierSizes,
    admitted: Sequence[KeyedRequest],
    advance: Advance,
) -> RouterComparison:
    """Replay a trace through one cache, and through replicas with each router in turn.

    `router` is the label of the router that is reported in full.
    """
    alone = replicas.in_one(sizes, admitted, advance)
    one = hit_rates(alone.served).token_hit_rate
    routed, chosen = [RoutedTrace(ONE_CACHE, one, 1.0, 1.0, None)], alone
    for variant in behind:
        served = replicas.behind(variant, sizes, admitted, advance)
        routed.append(_routed(variant.label, served, one))
        if variant.label == router:
            chosen = _merged(served, sizes)
    return RouterComparison(sizes, routed, chosen)


def _routed(name: str, replicas: ReplicaSet, one: float) -> RoutedTrace:
    found = hit_rates(replicas.served)
    rate, tokens = found.token_hit_rate, found.input_tokens
    return RoutedTrace(
        router=name,
        token_hit_rate=rate,
        of_one_cache=rate / one if one else 1.0,
        imbalance=imbalance(replicas.replayed()),
        ttft_ms=summarise([1000 * seconds for seconds in replicas.ttft_s]),
        gaps_ms=_gaps(replicas.gaps),
        fetched=sum(one.fetched for one in replicas.served) / tokens,
        remote_prefills=replicas.remote_prefills / len(replicas.served),
    )


def _gaps(gaps: list[Gap]) -> Gaps | None:
    tokens = sum(one.tokens for one in gaps)
    if not tokens:
        return None
    mean = sum(one.seconds * one.tokens for one in gaps) / tokens
    return Gaps(1000 * mean, 1000 * gap_at(gaps, 50), 1000 * gap_at(gaps, 99))


def _merged(replicas: ReplicaSet, sizes: TierSizes) -> Replayed:
    each = replicas.replayed()
    first = each[0]
    return Replayed(
        policy=first.policy,
        block_size=first.block_size,
        sizes=sizes,
        served=replicas.served,
        too_long=sum(one.too_long for one in each),
        written={tier: sum(one.written[tier] for one in each) for tier in first.written},
        loaded={tier: sum(one.loaded[tier] for one in each) for tier in first.loaded},
    )


def imbalance(each: Sequence[Replayed]) -> float:
    """Return the busiest replica's computed prompt tokens, divided by the mean."""
    computed = [sum(one.computed for one in run.served) for run in each]
    mean = fmean(computed)
    return max(computed) / mean if mean else 1.0


def show_routed(report: RoutedReport) -> None:
    """Print the report."""
    show(report.together)
    print_table(
        f"{report.replicas} replicas by router; above: {report.router}",
        (
            *("router", "cached", "of one cache", "fetched", "remote", "busiest / mean"),
            *("TTFT mean, ms", "p99", "gap mean, ms", "p99"),
        ),
        [_row(one) for one in report.by_router],
    )
    if report.by_size:
        print_table(
            "By size of each replica",
            ("router", "tokens", "cached", "busiest / mean"),
            [
                (one.router, f"{one.tokens:,}", f"{one.token_hit_rate:.1%}", f"{one.imbalance:.2f}")
                for one in report.by_size
            ],
        )


def _row(one: RoutedTrace) -> tuple[str, ...]:
    gaps = one.gaps_ms
    return (
        one.router,
        f"{one.token_hit_rate:.1%}",
        f"{one.of_one_cache:.1%}",
        f"{one.fetched:.1%}" if one.fetched else "",
        f"{one.remote_prefills:.0%}" if one.remote_prefills else "",
        f"{one.imbalance:.2f}",
        *(("", "") if one.ttft_ms is None else _times(one.ttft_ms)),
        *(("", "") if gaps is None else (f"{gaps.mean:.1f}", f"{gaps.p99:.1f}")),
    )


def draw_hit_rates(points: Sequence[RoutedPoint], title: str) -> bytes:
    """Draw a curve for each router: hit rate in percent by a replica's size in tokens."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for one in sorted(points, key=lambda one: one.tokens):
        curves.setdefault(one.router, []).append((one.tokens / 1e6, 100 * one.token_hit_rate))
    return draw_curves(
        curves,
        title=title,
        across="tokens in all tiers of a replica (millions)",
        up="cached input tokens (%)",
    )


def _times(summary: Summary) -> tuple[str, str]:
    return f"{summary.mean:,.0f}", f"{summary.p99:,.0f}"
