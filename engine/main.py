"""The engine's composition root: from an `EngineConfig` to a process that serves.

Knows: which parts there are and in what order they come up. Does not know: how any of them
works. Where the settings come from is `cli`'s matter.
"""

from __future__ import annotations

import gc
import logging
import resource
import sys
from contextlib import ExitStack, closing

import msgspec
import torch

from engine.assembly import Computer, Keeping, Limits, ModelFacts, assemble
from engine.codec import Codec
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.draft import StepLimits
from engine.host_ahead import HostAhead, host_ahead
from engine.link import Link, SocketLink
from engine.loading import OpenedModel, open_model, outline_model
from engine.lower_tiers import LowerTiers, open_tiers
from engine.model.errors import ModelError
from engine.process import EXIT_CANNOT_START, StopSignal, serve
from engine.pulse import Echo
from engine.queue import QueueLimits
from engine.warm_up import warm_up
from prefix_cache.policies import by_name

CPU_BESIDE_VISITORS = 64
CUDA_BESIDE_VISITORS = 256
CPU_BACKLOG_STEPS = 0  # what it would gain there was not measured
CUDA_BACKLOG_STEPS = 24

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Run one engine process; returns its exit code. `arguments`: an `EngineConfig` as JSON."""
    _leave_no_core()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        [settings] = arguments
        config = msgspec.json.decode(settings, type=EngineConfig)
    except (ValueError, msgspec.DecodeError) as error:
        _log.error("usage: python -m engine CONFIG, an EngineConfig as JSON: %s", error)
        return EXIT_CANNOT_START
    with ExitStack() as opened:
        try:
            outline = outline_model(config)
            ahead = opened.enter_context(
                host_ahead(config, outline.shape.block_bytes, outline.device)
            )
            model = open_model(config, outline)
            link = opened.enter_context(closing(SocketLink(config.socket, codec=Codec())))
            opened.enter_context(closing(Echo(config.socket)))
        except (ModelError, OSError) as error:
            _log.error("the engine cannot start: %s", error)
            return EXIT_CANNOT_START
        return _serve(config, model, link, ahead)


def _leave_no_core() -> None:
    """Have no core dump written when this process or a child of it crashes: it would hold prompts.

    The limit is 1 byte, not 0: where dumps are piped to a program (`core_pattern`), Linux ignores
    the limit, but for the special value 1 (fs/coredump.c).
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    most = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def _serve(config: EngineConfig, model: OpenedModel, link: Link, ahead: HostAhead | None) -> int:
    tiers = open_tiers(config, model.pool, model.num_blocks, model.fingerprint, ahead)
    try:
        return _run(config, build_core(config, model, link, tiers.lower))
    finally:
        tiers.close()


def _run(config: EngineConfig, core: EngineCore) -> int:
    restored = warm_up(core.parts)
    if restored:
        _log.info("restored %d blocks from disk", restored)
    stop = StopSignal()
    stop.listen()
    gc.collect()
    gc.freeze()  # what exists now stays: garbage collections need not look at it again
    _log.info("serving %s on %s", config.model_dir, config.socket)
    return serve(core, stop, grace_s=config.grace_s, spill_grace_s=config.spill_grace_s)


def build_core(
    config: EngineConfig, model: OpenedModel, link: Link, lower: LowerTiers | None = None
) -> EngineCore:
    """The engine that serves `model` on `link` under the bounds of `config`."""
    facts = ModelFacts(
        fingerprint=model.fingerprint,
        vocab_size=model.model.vocab_size,
        context_len=model.max_model_len,
        eos_token_ids=tuple(model.model.eos_token_ids),
        device=model.device,
        dtype=model.dtype,
    )
    computer = Computer(
        runner=model.runner,
        facts=facts,
        num_blocks=model.num_blocks,
        block_size=model.block_size,
        out_of_memory=torch.OutOfMemoryError,
    )
    limits = Limits(
        step=step_limits(config, model.device, model.max_batch_tokens),
        queue=QueueLimits(capacity=config.max_waiting),
        single_flight_deadline_s=config.single_flight_deadline_s,
        # A CPU computes a step while it is launched: a step ahead would only delay its tokens.
        steps_ahead=0 if model.device == "cpu" else config.steps_ahead,
    )
    policy = by_name(config.cache_policy, model.block_size)
    keeping = Keeping(policy=policy, lower=lower or LowerTiers())
    return assemble(computer, link, limits, keeping)


def step_limits(config: EngineConfig, device: str, max_batch_tokens: int) -> StepLimits:
    """The bounds of a step on `device`, those that `config` leaves open as they were measured."""
    is_cpu = device == "cpu"
    beside_visitors = CPU_BESIDE_VISITORS if is_cpu else CUDA_BESIDE_VISITORS
    backlog_steps = CPU_BACKLOG_STEPS if is_cpu else CUDA_BACKLOG_STEPS
    return StepLimits(
        max_batch_tokens=max_batch_tokens,
        max_running=min(config.max_running, max_batch_tokens),
        beside_decodes=config.max_batch_tokens_beside_decodes,
        backlog_steps=backlog_steps if config.backlog_steps is None else config.backlog_steps,
        beside_visitors=config.max_batch_tokens_beside_visitors or beside_visitors,
    )
