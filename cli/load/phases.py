"""The workloads of `ratoon bench --workload`, drawn from a seed: phases of chains of turns.

    mixed       prompts and answers of 100 to 1,024 tokens, all at once
    tenants     prompts with a prefix common to all tenants, a prefix common to the tenant, and
                an ending of their own
    multiturn   conversations that grow: each turn continues the one before
    agents      sessions of agents: a common beginning, and turns that add little or much
    ttft-cold   new prompts, one after the other
    ttft-hot    new prompts, one after the other, and then the same prompts with other endings
    itl         1, 32, 128 and 256 answers decoded at once
    reload      long prompts, other prompts that evict them, and the long prompts again

A chain's turns are sent one after another. Chains run concurrently. The answers in a conversation
are made up, so that every server gets the same requests.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

WorkloadName = Literal[
    "mixed", "tenants", "multiturn", "agents", "ttft-cold", "ttft-hot", "itl", "reload"
]
WORKLOADS: tuple[WorkloadName, ...] = get_args(WorkloadName)
SPECIAL_IDS = 10


@dataclass(frozen=True, slots=True)
class ChainTurn:
    """The token ids that a turn adds to its chain, and the length of its answer in tokens."""

    ids: tuple[int, ...]
    output: int


Chain = tuple[ChainTurn, ...]


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """Chains of turns, of which `concurrency` run at once."""

    name: str
    concurrency: int
    chains: tuple[Chain, ...]


@dataclass(frozen=True, slots=True)
class WorkloadSizes:
    """The sizes of the workloads, in tokens unless noted."""

    mixed_requests: int = 256
    mixed_least: int = 100
    mixed_most: int = 1024
    tenants: int = 16
    per_tenant: int = 32
    of_all: int = 1024
    of_tenant: int = 3072
    own: int = 128
    tenant_output: int = 64
    tenant_concurrency: int = 64
    conversations: int = 64
    turns: int = 6
    first: int = 1024
    user: int = 256
    turn_output: int = 128
    agents: int = 48
    agent_turns: int = 10
    agent_head: int = 1024
    agent_least: int = 120
    agent_most: int = 2500
    agent_output: int = 192
    prompts: tuple[int, ...] = (2048, 8192, 32000)
    repeats: int = 4
    ending: int = 64
    short_output: int = 2
    batches: tuple[int, ...] = (1, 32, 128, 256)
    batch_context: int = 1024
    batch_output: int = 256
    reload_prompt: int = 16000
    reload_heads: int = 6
    reload_fillers: int = 16


SMALL = WorkloadSizes(
    mixed_requests=6,
    mixed_least=8,
    mixed_most=32,
    tenants=2,
    per_tenant=3,
    of_all=32,
    of_tenant=48,
    own=8,
    tenant_output=4,
    tenant_concurrency=3,
    conversations=2,
    turns=3,
    first=32,
    user=16,
    turn_output=4,
    agents=2,
    agent_turns=3,
    agent_head=16,
    agent_least=4,
    agent_most=24,
    agent_output=4,
    prompts=(64, 128),
    repeats=2,
    ending=8,
    batches=(1, 4),
    batch_context=32,
    batch_output=8,
    reload_prompt=128,
    reload_heads=2,
    reload_fillers=2,
)


@dataclass(frozen=True, slots=True)
class RandomIds:
    """A source of random token ids below a vocabulary's size."""

    rng: random.Random
    vocab: int

    def ids(self, count: int) -> tuple[int, ...]:
        """Draw `count` random ids."""
        return tuple(
            self.rng.randrange(SPECIAL_IDS, self.vocab - SPECIAL_IDS) for _ in range(count)
        )


def draw_phases(name: WorkloadName, sizes: WorkloadSizes, vocab: int, seed: int) -> list[LoadPhase]:
    """Draw a workload's phases. Equal arguments give equal phases. `vocab` is at least 21."""
    draw = RandomIds(random.Random(f"{seed} {name}"), vocab)
    return _DRAWN[name](draw, sizes)


def longest(phases: Sequence[LoadPhase]) -> int:
    """Return the maximum number of tokens of a prompt with its answer."""
    chains = (chain for phase in phases for chain in phase.chains)
    return max(sum(len(turn.ids) + turn.output for turn in chain) for chain in chains)


def prompts_of(chain: Chain) -> Iterator[tuple[list[int], int]]:
    """Yield each request's whole prompt (token ids), and its answer's length in tokens."""
    said: list[int] = []
    for turn in chain:
        said += turn.ids
        yield list(said), turn.output
        said += [SPECIAL_IDS + place * 7919 % 1000 for place in range(turn.output)]


def _mixed(draw: RandomIds, sizes: WorkloadSizes) -> list[LoadPhase]:
    def length() -> int:
        return draw.rng.randint(sizes.mixed_least, sizes.mixed_most)

    chains = tuple((ChainTurn(draw.ids(length()), length()),) for _ in range(sizes.mixed_requests))
    return [LoadPhase("mixed", sizes.mixed_requests, chains)]


def _tenants(draw: RandomIds, sizes: WorkloadSizes) -> list[LoadPhase]:
    of_all = draw.ids(sizes.of_all)
    heads = [of_all + draw.ids(sizes.of_tenant) for _ in range(sizes.tenants)]
    chains = [
        (ChainTurn(head + draw.ids(sizes.own), sizes.tenant_output),)
        for head in heads
        for _ in range(sizes.per_tenant)
    ]
    draw.rng.shuffle(chains)
    return [LoadPhase("tenants", sizes.tenant_concurrency, tuple(chains))]


def _multiturn(draw: RandomIds, sizes: WorkloadSizes) -> list[LoadPhase]:
    lengths = [sizes.first, *[sizes.user] * (sizes.turns - 1)]
    chains = tuple(
        tuple(ChainTurn(draw.ids(length), sizes.turn_output) for length in lengths)
        for _ in range(sizes.conversations)
    )
    return [LoadPhase("multiturn", sizes.conversations, chains)]


def _agents(draw: RandomIds, sizes: WorkloadSizes) -> list[LoadPhase]:
    head = draw.ids(sizes.agent_head)

    def turn(start: tuple[int, ...] = ()) -> ChainTurn:
        added = round(
            sizes.agent_least * (sizes.agent_most / sizes.agent_least) ** draw.rng.random()
        )
        return ChainTurn(start + draw.ids(added), sizes.agent_output)

    chains = tuple(
        (turn(head), *(turn() for _ in range(sizes.agent_turns - 1))) for _ in range(sizes.agents)
    )
    return [LoadPhase("agents", sizes.agents, chains)]


def _one_by_one(
    name: str, draw: RandomIds, sizes: WorkloadSizes, heads: list[tuple[int, ...]]
) -> LoadPhase:
    chains = tuple(
        (ChainTurn(head + draw.ids(sizes.ending), sizes.short_output),) for head in heads
    )
    return LoadPhase(name, 1, chains)


def _ttft(
    draw: RandomIds, sizes: WorkloadSizes, kinds: tuple[str, ...] = ("cold",)
) -> list[LoadPhase]:
    phases = []
    for length in sizes.prompts:
        heads = [draw.ids(length) for _ in range(sizes.repeats)]
        phases += [_one_by_one(f"ttft-{kind}-{length}", draw, sizes, heads) for kind in kinds]
    return phases


def _itl(draw: RandomIds, sizes: WorkloadSizes) -> list[LoadPhase]:
    return [
        LoadPhase(
            f"itl-{batch}",
            batch,
            tuple(
                (ChainTurn(draw.ids(sizes.batch_context), sizes.batch_output),)
                for _ in range(batch)
            ),
        )
        for batch in sizes.batches
    ]


def _reload(draw: RandomIds, sizes: WorkloadSizes) -> list[LoadPhase]:
    heads = [draw.ids(sizes.reload_prompt) for _ in range(sizes.reload_heads)]
    fillers = tuple(
        (ChainTurn(draw.ids(sizes.reload_prompt), sizes.short_output),)
        for _ in range(sizes.reload_fillers)
    )
    return [
        _one_by_one("reload-cold", draw, sizes, heads),
        LoadPhase("reload-fill", 2, fillers),
        _one_by_one("reload-back", draw, sizes, heads),
    ]


_DRAWN: dict[WorkloadName, Callable[[RandomIds, WorkloadSizes], list[LoadPhase]]] = {
    "mixed": _mixed,
    "tenants": _tenants,
    "multiturn": _multiturn,
    "agents": _agents,
    "ttft-cold": _ttft,
    "ttft-hot": partial(_ttft, kinds=("cold", "hot")),
    "itl": _itl,
    "reload": _reload,
}
