"""A whole engine without tensors or sockets: the real cache, a fake runner, a link in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from engine.core import EngineCore
from engine.drafting.draft import Drafting
from engine.link.event_messages import Failed, Finished
from engine.link.messages import (
    AdapterUse,
    FetchSource,
    Generate,
    Loads,
    SamplingParams,
    pack_token_ids,
)
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.sequences.token_constraint import (
    ConstraintOf,
    MadeOnDemand,
    MaskMaker,
    unconstrained,
)
from engine.startup.assembly import (
    CacheParts,
    EngineLimits,
    LoadedRunner,
    assemble,
)
from engine.tier_interfaces import Disk, LowerTiers
from prefix_cache.eviction.policies import policy_by_name
from prefix_cache.hashing import block_keys
from prefix_cache.names import PolicyName
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tiers.tier_pools import Tiers
from tests.doubles.engine.fake_mover import FakeMover, Faults
from tests.doubles.engine.fake_runner import VOCAB_SIZE, FakeRunner, expected_output
from tests.doubles.engine.memory_link import MemoryLink
from tests.doubles.engine.stateful_runner import StatefulRunner
from tests.doubles.engine.welcomes import welcome_of

EOS = 0
NAMESPACE = Namespace(b"n" * 16)
OTHER = Namespace(b"o" * 16)
CLIENT = b"gateway"


class Clock:
    """A clock that tests advance."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def generate(
    request_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 4,
    flow: str = "flow",
    weight: float = 1.0,
    namespace: Namespace | NamespacePath = NAMESPACE,
    use_cache: bool = True,
    block_size: int = 4,
    sampling: SamplingParams | None = None,
    loads: Loads = "auto",
    cache_quota: tuple[float, float] | None = None,
    writer: str = "",
    source: FetchSource | None = None,
    adapter: AdapterUse | None = None,
) -> Generate:
    """Make a valid request."""
    given = namespace
    path = given if isinstance(given, NamespacePath) else NamespacePath.single(given)
    return Generate(
        request_id=request_id,
        token_ids=pack_token_ids(prompt),
        namespaces=path.spans,
        block_keys=block_keys(path, np.array(prompt, np.int32), block_size),
        flow=flow,
        weight=weight,
        sampling=sampling or SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        use_cache=use_cache,
        loads=loads,
        cache_quota=cache_quota,
        writer=writer,
        source=source,
        adapter=adapter,
    )


@dataclass
class Rig:
    """An engine under test, with access to its parts."""

    num_blocks: int = 64
    block_size: int = 4
    max_batch_tokens: int = 16
    max_running: int = 8
    max_step_s: float | None = None
    target_itl_s: float | None = None
    max_waiting: int = 1000
    context_len: int = 10_000
    deadline_s: float = 10.0
    quantum: int = 16
    patience: int = 8
    overlap_scheduling: bool = False
    stages: int = 1
    policy: PolicyName = "lru"
    tiers: Tiers = field(default_factory=Tiers)
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    disk: Disk | None = None  # a disk, for tests that use it for more than moves
    constraint_of: ConstraintOf = unconstrained
    masks: MaskMaker = field(default_factory=MadeOnDemand)
    drafting: Drafting | None = None
    num_states: int = 0  # number of state slots; 0: no recurrent layers
    in_place: bool = False  # True if states are rings
    sentinel_share: float = 0.0
    has_modules: bool = False
    pushed: int = 0
    check_every: int = 1  # number of steps between checks of the cache
    stepped: int = 0
    clock: Clock = field(default_factory=Clock)
    link: MemoryLink = field(default_factory=MemoryLink)

    def __post_init__(self) -> None:
        self.runner = FakeRunner(self.block_size, self.num_blocks)
        if self.num_states:
            self.runner = StatefulRunner(
                self.block_size,
                self.num_blocks,
                num_states=self.num_states,
                in_place=self.in_place,
            )
        self.mover = FakeMover(self.runner, self.faults, Random(self.seed), tiers=self.tiers)
        welcome = welcome_of(
            VOCAB_SIZE,
            self.context_len,
            (EOS,),
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            has_modules=self.has_modules,
        )
        self.core: EngineCore = assemble(
            LoadedRunner(
                self.runner,
                welcome,
                self.num_blocks,
                MemoryError,
                self.constraint_of,
                masks=self.masks,
                num_states=self.num_states,
                states_in_place=self.in_place,
            ),
            self.link,
            EngineLimits(
                StepLimits(
                    self.max_batch_tokens,
                    self.max_running,
                    self.max_step_s,
                    self.stages,
                    self.target_itl_s,
                ),
                QueueLimits(self.max_waiting, self.quantum, patience=self.patience),
                self.deadline_s,
                self.overlap_scheduling,
                graph_tokens=0,
                sentinel_share=self.sentinel_share,
            ),
            CacheParts(
                policy=policy_by_name(self.policy),
                lower=LowerTiers(self.tiers, self.mover, self.disk, block_bytes=64),
            ),
            drafting=self.drafting,
            clock=self.clock,
        )
        self.cache = self.core.components.cache
        self.scheduler = self.core.components.scheduler
        self.runner.running = lambda: self.scheduler.running

    def submit(self, request: Generate, client: bytes = CLIENT) -> None:
        self.link.say(request, client)

    def step(self, times: int = 1) -> None:
        """Run steps of a millisecond each, and check the cache's invariants afterwards."""
        for _ in range(times):
            self.core.step()
            self.clock.now += 0.001
            self.stepped += 1
            if self.stepped % self.check_every == 0:
                self.cache.check_invariants()

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def run(self, max_steps: int = 2000) -> int:
        """Step until no request is alive; return the number of steps."""
        self.step()
        for taken in range(1, max_steps):
            if self.core.is_idle:
                return taken
            self.step()
        raise AssertionError(f"still alive after {max_steps} steps")

    def settle_copies(self, max_steps: int = 200) -> None:
        """Step until no copy is pending."""
        for _ in range(max_steps):
            self.step()
            if not self.mover.pending:
                return
        raise AssertionError("copies go on for ever")

    def push_out(self, num_tokens: int | None = None) -> None:
        """Push blocks to lower tiers: another namespace's prompt takes `num_tokens` of the device,
        or all.
        """
        count = num_tokens or self.num_blocks * self.block_size - 1
        self.pushed += 1
        tokens = [(self.pushed * 17 + i * i) % VOCAB_SIZE for i in range(count)]
        name = f"push-{self.pushed}"
        self.submit(generate(name, tokens, max_tokens=1, flow="push", namespace=OTHER))
        self.run()
        self.settle_copies()

    def finished(self, request_id: str) -> Finished:
        last = self.link.last(request_id)
        assert isinstance(last, Finished), last
        return last

    def failed(self, request_id: str) -> Failed:
        last = self.link.last(request_id)
        assert isinstance(last, Failed), last
        return last

    def expect_output(self, request: Generate) -> None:
        """Check that the request ran to its max_tokens, and that every token is right."""
        prompt = np.frombuffer(request.token_ids, np.int32).tolist()
        expected = expected_output(prompt, request.sampling.max_tokens)
        assert self.link.tokens(request.request_id) == expected
        assert self.finished(request.request_id).completion_tokens == len(expected)

    def expect_nothing_left(self) -> None:
        """Check that no block and no queue slot is held, and that no copy is pending."""
        self.settle_copies()
        self.cache.flush()
        pool = self.cache.capacity.pool()
        assert (pool.free, pool.leased) == (pool.total, 0)
        checkpoints = self.cache.checkpoints
        assert checkpoints.is_empty
        assert checkpoints.num_leased == 0
        assert not [*self.scheduler.running, *self.scheduler.loading, *self.scheduler.queue]
        assert not self.runner.on_their_way
        self.cache.check_invariants()
