"""A whole engine over a real model, in this process, with a link in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from engine.config import DeviceName, EngineConfig, KvDtype, Quantization
from engine.copies import COPY_WAIT_S
from engine.core import EngineCore
from engine.drafting.draft import Drafting
from engine.exchange.block_memory import States
from engine.exchange.exchange import ExchangeThreads, open_exchange
from engine.exchange.fetching.client import SILENCE_S
from engine.exchange.fetching.fetch import Patience
from engine.execution.runner import ModelRunner
from engine.link.event_messages import Finished
from engine.link.messages import (
    AdapterUse,
    FetchSource,
    Generate,
    Loads,
    SamplingParams,
    pack_token_ids,
)
from engine.link.tcp.curve import LinkKey
from engine.models.served.registry import SERVED, ServedModels
from engine.ranks.tiers import ranks_tiers
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.sequences.token_constraint import ConstraintOf, MaskMaker
from engine.startup.assembly import CacheParts, EngineLimits, assemble
from engine.startup.loading import OpenedModel, open_model
from engine.startup.memory.lower_tiers import GIB, open_tiers
from engine.startup.metadata import read_metadata
from engine.step import Forward, Launched, Runner, Step
from prefix_cache.hashing import Digest, block_keys, xxh3_128_digest
from prefix_cache.namespace import Namespace, NamespacePath
from storage.pools.device_pool import DevicePool
from tests.doubles.engine.device.rerun import Rerun
from tests.doubles.engine.memory_link import MemoryLink
from tests.doubles.row_owners import Running, owners_of
from tests.engine.rigs.hand_driven import with_graphs
from tests.engine.rigs.ranks import StartedRanks, ThreadRanks

CLIENT = b"gateway"


@dataclass(frozen=True)
class Bounds:
    """Bounds of the engine: pool, steps, running requests."""

    num_blocks: int
    block_size: int
    max_batch_tokens: int
    max_running: int
    overlap_scheduling: bool = False
    # maximum tokens of captured steps; a CPU computes such a step again instead of replaying a
    # graph
    graph_tokens: int = 0
    device: DeviceName = "cpu"
    host_blocks: int = 0
    disk_bytes: int = 0
    kv_dtype: KvDtype = "auto"
    ranks: int = 1  # number of ranks that divide each layer; all but the first run in threads
    stages: int = 1  # number of stages that divide the layers, each of `ranks` ranks
    quantization: Quantization = "none"
    drafts: bool = False


@dataclass
class NotingRunner:
    """A runner that records the requests in each step."""

    runner: Runner
    running: Running = tuple
    steps: list[list[str]] = field(default_factory=list)

    def launch(self, step: Step) -> Launched:
        self.steps.append([one.request_id for one in owners_of(step, self.running())])
        return self.runner.launch(step)

    def launch_forward(self, step: Step) -> Forward:
        self.steps.append([one.request_id for one in owners_of(step, self.running())])
        return self.runner.launch_forward(step)


@dataclass(frozen=True)
class ExchangeAt:
    """The address at which other engines ask for blocks, if any, and the time limits of fetches."""

    where: str | None = None
    key: LinkKey | None = None
    patience: Patience | None = None
    silence_s: float = SILENCE_S

    def open(
        self, pool: DevicePool, fingerprint: bytes, states: States | None = None
    ) -> ExchangeThreads:
        given = pool, self.where, self.key, fingerprint
        return open_exchange(*given, states=states, silence_s=self.silence_s)


def as_it_is(config: EngineConfig) -> EngineConfig:
    """Return the config unchanged."""
    return config


class RealEngine:
    """A real engine, stepped by hand. `digest` makes the block keys."""

    def __init__(
        self,
        model_dir: str,
        bounds: Bounds,
        *,
        digest: Digest = xxh3_128_digest,
        disk: Path | None = None,
        fingerprint: bytes | None = None,
        constraint_of: ConstraintOf | None = None,
        masks: MaskMaker | None = None,
        served: ServedModels = SERVED,
        exchange: ExchangeAt | None = None,
        start_ranks: Callable[[EngineConfig], StartedRanks] = ThreadRanks,
        over: Callable[[EngineConfig], EngineConfig] = as_it_is,
        drafting: Drafting | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start an engine. `disk` is the directory of its disk tier, if `bounds` has disk bytes.

        `constraint_of` replaces grammars, and `masks` the threads that make masks. `fingerprint`
        replaces the model's own on disk. `steps` are the request ids of each step's rows. With
        `exchange`, this engine and others fetch blocks from each other. Other ranks are threads,
        unless `start_ranks` starts them elsewhere; `over` changes the config.
        """
        self.bounds = bounds
        self.link = MemoryLink(sleeps=True)
        self._digest = digest
        config = over(config_of(model_dir, bounds, disk, exchange or ExchangeAt()))
        self.ranks = start_ranks(config) if config.ranks.num_ranks > 1 else None
        metadata = read_metadata(config, served)
        opened = open_model(config, metadata, self.ranks)
        self.fingerprint = fingerprint or opened.welcome.fingerprint
        self.grammars, self.adapters = opened.grammars, opened.adapters
        groups = None if self.ranks is None else self.ranks.groups
        self.tiers = open_tiers(
            config,
            opened.pool,
            opened.num_blocks,
            self.fingerprint,
            group=groups,
            share=metadata.share,
            states=opened.states,
        )
        lower = self.tiers.lower
        self.exchange = None
        if self.ranks is not None:
            assert exchange is None, "blocks of several ranks go nowhere"
            lower = ranks_tiers(lower, self.ranks.others, opened.runner)
            self.ranks.await_started()
        elif exchange is not None:
            self.exchange = exchange.open(opened.pool, opened.welcome.fingerprint, opened.states)
        if bounds.graph_tokens and bounds.device == "cpu":
            opened = _with_steps_run_again(opened, bounds.graph_tokens)
        self.pool = opened.pool
        self.runner = opened.runner
        runner = NotingRunner(opened.runner)
        self.steps = runner.steps
        self.core: EngineCore = assemble(
            replace(
                opened,
                runner=runner,
                constraint_of=constraint_of or opened.constraint_of,
                masks=masks or opened.masks,
            ),
            self.link,
            EngineLimits(
                StepLimits(bounds.max_batch_tokens, bounds.max_running, stages=bounds.stages),
                QueueLimits(),
                10.0,
                bounds.overlap_scheduling,
                drafts=bounds.drafts,
            ),
            CacheParts(digest=digest, lower=lower),
            self.exchange,
            patience=None if exchange is None else exchange.patience,
            drafting=drafting,
            clock=clock,
        )
        runner.running = lambda: self.core.components.scheduler.running
        self.cache = self.core.components.cache

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        namespace: Namespace,
        use_cache: bool = True,
        loads: Loads = "auto",
        source: FetchSource | None = None,
        writer: str = "",
        embeds: bool = False,
        candidates: Sequence[int] = (),
        adapter: AdapterUse | None = None,
    ) -> None:
        """Submit a request to the engine."""
        path = NamespacePath.single(namespace)
        ids = np.array(prompt, np.int32)
        self.link.say(
            Generate(
                request_id=request_id,
                token_ids=pack_token_ids(prompt),
                namespaces=path.spans,
                block_keys=block_keys(path, ids, self.bounds.block_size, digest=self._digest),
                flow=namespace.hex(),
                sampling=sampling,
                use_cache=use_cache,
                loads=loads,
                source=source,
                writer=writer,
                embeds=embeds,
                candidates=pack_token_ids(candidates),
                adapter=adapter,
            ),
            CLIENT,
        )

    def step(self) -> None:
        """Run one step, then check the cache's invariants."""
        self.core.step()
        self.cache.check_invariants()

    def run(self) -> None:
        """Step until no request is alive."""
        self.step()
        while not self.core.is_idle:
            self.step()

    def tokens(self, request_id: str) -> list[int]:
        """Return a request's generated tokens, including a stop token."""
        last = self.finished(request_id)
        stop = [] if last.stop_token_id is None else [last.stop_token_id]
        return self.link.tokens(request_id) + stop

    def finished(self, request_id: str) -> Finished:
        """Return the `Finished` of a request; fail for any other end."""
        last = self.link.last(request_id)
        assert isinstance(last, Finished), last
        return last

    def close(self) -> None:
        """Close the ranks, the exchange, the lower tiers, the grammars and the adapters."""
        if self.ranks is not None:
            self.ranks.close()
        if self.exchange is not None:
            self.exchange.close()
        self.tiers.close()
        self.grammars.close()
        if self.adapters is not None:
            self.adapters.host.close()

    def expect_nothing_left(self) -> None:
        """Check that every block is free after a flush and after the end of all copies."""
        self.cache.flush()
        while self.core.components.copies.pending:
            self.step()
            time.sleep(COPY_WAIT_S)
        pool = self.cache.capacity.pool()
        assert (pool.free, pool.leased) == (pool.total, 0)
        self.cache.check_invariants()


def config_of(
    model_dir: str, bounds: Bounds, disk: Path | None, exchange: ExchangeAt
) -> EngineConfig:
    """Return the config of an engine with these bounds, and a disk tier in `disk`."""
    return EngineConfig.of(
        model_dir=model_dir,
        socket="",
        exchange=exchange.where,
        device=bounds.device,
        dtype="float32",
        graph_tokens=bounds.graph_tokens,
        block_size=bounds.block_size,
        kv_dtype=bounds.kv_dtype,
        quantization=bounds.quantization,
        tensor_parallel=bounds.ranks,
        pipeline_parallel=bounds.stages,
        cache_tokens=bounds.num_blocks * bounds.block_size,
        num_threads=1,
        max_running=bounds.max_running,
        host_cache_tokens=bounds.host_blocks * bounds.block_size,
        disk_cache_dir=None if disk is None else str(disk),
        disk_cache_gib=bounds.disk_bytes / GIB,
    )


def _with_steps_run_again(opened: OpenedModel, max_tokens: int) -> OpenedModel:
    """Capture steps of up to `max_tokens` tokens. Without a GPU, a replay computes them again."""
    assert isinstance(opened.runner, ModelRunner)
    graphs = with_graphs(
        opened.runner, Rerun(), max_tokens=max_tokens, max_model_len=opened.welcome.max_model_len
    )
    return replace(opened, runner=graphs)
