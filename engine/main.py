"""The engine's composition root: it builds a serving engine from an `EngineConfig`.

Elsewhere: the parsing of settings (`cli`).
"""

from __future__ import annotations

import gc
import logging
from contextlib import ExitStack, closing
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from engine.config import EngineConfig
from engine.config_argument import begun_with
from engine.core import EngineCore
from engine.drafting.draft import Drafting
from engine.exchange.exchange import ExchangeThreads, open_exchange
from engine.link.codec import Codec
from engine.link.engine_end.socket_link import Link, SocketLink
from engine.link.tcp.curve import BadLinkKey, LinkKey, read_link_key
from engine.link.tcp.open_connections import few_connections
from engine.models.errors import ModelError, ModelNotServed
from engine.process import (
    EXIT_BROKEN,
    EXIT_CANNOT_START,
    EXIT_NOT_SERVED,
    EXIT_STOPPED,
    StopSignal,
    serve,
)
from engine.ranks.leader import RankGone
from engine.ranks.team import Team, started_ranks, why_not_started
from engine.ranks.tiers import ranks_tiers
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import CacheParts, EngineLimits, assemble
from engine.startup.loading import OpenedModel, open_model
from engine.startup.memory.enough_memory import enough_memory
from engine.startup.memory.lower_tiers import HostAhead, host_ahead, open_tiers
from engine.startup.metadata import read_metadata
from engine.startup.own_step import measure_step
from engine.startup.warm_up import warm_up
from engine.tier_interfaces import LowerTiers
from prefix_cache.eviction.policies import policy_by_name

# The maximum milliseconds of a step if its decodes have no target and few prompts wait.
CPU_MAX_STEP_MS = 1000.0
CUDA_MAX_STEP_MS = 60.0

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Run one engine process and return its exit code. `arguments` is an `EngineConfig` as JSON."""
    config = begun_with(arguments)
    if config is None:
        return EXIT_CANNOT_START
    with ExitStack() as opened:
        try:
            with enough_memory():
                loaded = _opened(config, opened)
        except (ModelError, BadLinkKey, OSError, RankGone) as error:
            return _cannot_start(error)
        try:
            with enough_memory(), why_not_started(loaded.team):
                core = _warm_core(config, loaded, opened)
        except (ModelError, RankGone) as error:
            return _cannot_start(error)
        code = _run(config, core)
        if loaded.team is not None and code == EXIT_STOPPED:
            loaded.team.dismiss()
        return code


class _Loaded(NamedTuple):
    model: OpenedModel
    link: SocketLink
    exchange: ExchangeThreads | None  # None with several ranks, because they do not exchange blocks
    ahead: HostAhead | None
    team: Team | None
    share: Fraction  # this rank's share of the size of each tier below the device


def _cannot_start(error: Exception) -> int:
    _log.error("the engine cannot start: %s", " ".join(str(error).split()))
    if isinstance(error, RankGone):
        return EXIT_BROKEN  # perhaps a rank was killed, so another start may succeed
    return EXIT_NOT_SERVED if isinstance(error, ModelNotServed) else EXIT_CANNOT_START


def _opened(config: EngineConfig, opened: ExitStack) -> _Loaded:
    metadata = read_metadata(config)
    key = (
        None
        if config.process.link_key_file is None
        else read_link_key(Path(config.process.link_key_file))
    )
    if key is not None and (few := few_connections()) is not None:
        _log.warning(few)
    team = opened.enter_context(
        started_ranks(config, metadata.grid, metadata.stage, metadata.device)
    )
    block_bytes, device, share = metadata.layout.block_bytes, metadata.device, metadata.share
    ahead = opened.enter_context(
        host_ahead(config, block_bytes, device, share=share, state_blocks=metadata.state_blocks)
    )
    with why_not_started(team):
        model = open_model(config, metadata, team)
    opened.callback(model.part.close)
    opened.enter_context(closing(model.grammars))
    if model.adapters is not None:
        opened.callback(model.adapters.host.close)
    link = opened.enter_context(closing(SocketLink(config.process.socket, codec=Codec(), key=key)))
    exchange = _open_exchange(config, model, key, opened) if team is None else None
    if exchange is not None:
        link.wake_by(exchange.waker)
    return _Loaded(model, link, exchange, ahead, team, metadata.share)


def _open_exchange(
    config: EngineConfig, model: OpenedModel, key: LinkKey | None, opened: ExitStack
) -> ExchangeThreads:
    where, fingerprint = config.process.exchange, model.welcome.fingerprint
    threads = open_exchange(model.pool, where, key, fingerprint, states=model.states)
    return opened.enter_context(closing(threads))


def _warm_core(config: EngineConfig, loaded: _Loaded, opened: ExitStack) -> EngineCore:
    model, team = loaded.model, loaded.team
    tiers = open_tiers(
        config,
        model.pool,
        model.num_blocks,
        model.welcome.fingerprint,
        loaded.ahead,
        None if team is None else team.groups,
        loaded.share,
        model.states,
    )
    opened.enter_context(closing(tiers))
    lower = tiers.lower
    if team is not None:
        lower = ranks_tiers(lower, team.others, model.runner)
        team.await_started()
    core = build_core(config, model, loaded.link, lower, loaded.exchange)
    restored = warm_up(core.components)
    if restored:
        _log.info("restored %d blocks from disk", restored)
    if config.steps.target_itl_ms:
        measure_step(core)
    return core


def _run(config: EngineConfig, core: EngineCore) -> int:
    stop = StopSignal()
    stop.listen()
    gc.collect()
    gc.freeze()  # do not scan the objects made so far: they are never freed
    _log.info("serving %s on %s", config.model.model_dir, config.process.socket)
    return serve(
        core, stop, grace_s=config.process.grace_s, spill_grace_s=config.cache.spill_grace_s
    )


def build_core(
    config: EngineConfig,
    model: OpenedModel,
    link: Link,
    lower: LowerTiers | None = None,
    exchange: ExchangeThreads | None = None,
    drafting: Drafting | None = None,
) -> EngineCore:
    """Build the engine core that serves `model` over `link` within the limits of `config`.

    `drafting`, if given, replaces the choice of drafts that `config` selects.
    """
    device = model.welcome.device
    limits = EngineLimits(
        step=step_limits(config, device, model.max_batch_tokens),
        queue=QueueLimits(capacity=config.steps.max_waiting),
        single_flight_deadline_s=config.cache.single_flight_deadline_s,
        # On a CPU a launch computes the step, so launching a step ahead would only delay tokens.
        overlap_scheduling=device != "cpu" and config.steps.overlap_scheduling,
        graph_tokens=0 if device == "cpu" else config.steps.graph_tokens,
        drafts=config.steps.drafts == "auto",
        sentinel_share=config.cache.sentinel_share,
    )
    policy = policy_by_name(config.cache.cache_policy)
    cache_parts = CacheParts(policy=policy, lower=lower or LowerTiers())
    return assemble(model, link, limits, cache_parts, exchange, drafting=drafting)


def step_limits(config: EngineConfig, device: str, max_batch_tokens: int) -> StepLimits:
    """Return the limits of a step on `device`. If `config` has None, use measured defaults."""
    max_step_ms = CPU_MAX_STEP_MS if device == "cpu" else CUDA_MAX_STEP_MS
    stages = config.ranks.pipeline_parallel
    return StepLimits(
        max_batch_tokens=max_batch_tokens,
        # Decodes take at most half of a step's tokens, so that prompts always get the other half.
        max_running=min(config.steps.max_running, max(max_batch_tokens // 2, 1)),
        # Stages compute the steps of different sequences in turn, so a sequence gets one token
        # every `stages` steps.
        max_step_s=max_step_ms / 1e3 / stages,
        stages=stages,
        target_itl_s=config.steps.target_itl_ms / 1e3 or None,
    )
