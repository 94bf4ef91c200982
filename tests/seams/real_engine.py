"""A whole engine over a real model, in this process, with a link of two lists."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.assembly import Computer, Keeping, Limits, ModelFacts, assemble
from engine.config import DeviceName, EngineConfig
from engine.copies import COPY_WAIT_S
from engine.core import EngineCore
from engine.draft import StepLimits
from engine.loading import OpenedModel, open_model
from engine.lower_tiers import GIB, open_tiers
from engine.messages import Finished, Generate, Loads, SamplingParams, pack_token_ids
from engine.queue import QueueLimits
from engine.runner import ModelRunner
from prefix_cache.hashing import Digest, block_keys, xxh3_128_digest
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.memory_link import MemoryLink
from tests.doubles.rerun import Rerun
from tests.engine.hand_driven import with_graphs

CLIENT = b"gateway"


@dataclass(frozen=True)
class Bounds:
    """What presses on the engine: pool, step and running bounds."""

    num_blocks: int
    block_size: int
    max_batch_tokens: int
    max_running: int
    steps_ahead: int = 0
    graph_tokens: int = 0  # of recorded steps; on the cpu they are run again, not replayed
    device: DeviceName = "cpu"
    host_blocks: int = 0
    disk_bytes: int = 0


class RealEngine:
    """Steps a real engine by hand. Keys are made with `digest`."""

    def __init__(
        self,
        model_dir: str,
        bounds: Bounds,
        *,
        digest: Digest = xxh3_128_digest,
        disk: Path | None = None,
        fingerprint: bytes | None = None,
    ) -> None:
        """`disk`: the directory of the disk tier, where `bounds` gives it bytes.

        `fingerprint` is what the disk is told instead of the model's own.
        """
        self.bounds = bounds
        self.link = MemoryLink(sleeps=True)
        self._digest = digest
        config = _config(model_dir, bounds, disk)
        opened = open_model(config)
        self.fingerprint = fingerprint or opened.fingerprint
        self.tiers = open_tiers(config, opened.pool, opened.num_blocks, self.fingerprint)
        if bounds.graph_tokens and bounds.device == "cpu":
            opened = _with_steps_run_again(opened, bounds.graph_tokens)
        self.core: EngineCore = assemble(
            _computer(opened),
            self.link,
            Limits(
                StepLimits(bounds.max_batch_tokens, bounds.max_running),
                QueueLimits(),
                10.0,
                bounds.steps_ahead,
            ),
            Keeping(digest=digest, lower=self.tiers.lower),
        )
        self.cache = self.core.parts.cache

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        namespace: Namespace,
        use_cache: bool = True,
        loads: Loads = "auto",
    ) -> None:
        """Put a request before the engine."""
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
            ),
            CLIENT,
        )

    def step(self) -> None:
        """One step, with the cache's books checked behind it."""
        self.core.step()
        self.cache.check_invariants()

    def run(self) -> None:
        """Step until nothing is alive."""
        self.step()
        while not self.core.is_idle:
            self.step()

    def tokens(self, request_id: str) -> list[int]:
        """What a request generated, its stop token included."""
        last = self.finished(request_id)
        stop = [] if last.stop_token_id is None else [last.stop_token_id]
        return self.link.tokens(request_id) + stop

    def finished(self, request_id: str) -> Finished:
        """The event that ended a request well."""
        last = self.link.last(request_id)
        assert isinstance(last, Finished), last
        return last

    def close(self) -> None:
        """End the tiers below the device."""
        self.tiers.close()

    def expect_nothing_left(self) -> None:
        """After a flush and the copies under way every block is free."""
        self.cache.flush()
        while self.core.parts.copies.pending:
            self.step()
            time.sleep(COPY_WAIT_S)
        pool = self.cache.pool()
        assert (pool.free, pool.leased) == (pool.total, 0)
        self.cache.check_invariants()


def _config(model_dir: str, bounds: Bounds, disk: Path | None) -> EngineConfig:
    return EngineConfig(
        model_dir=model_dir,
        socket="",
        device=bounds.device,
        dtype="float32",
        graph_tokens=bounds.graph_tokens,
        block_size=bounds.block_size,
        cache_tokens=bounds.num_blocks * bounds.block_size,
        num_threads=1,
        max_running=bounds.max_running,
        host_cache_tokens=bounds.host_blocks * bounds.block_size,
        disk_cache_dir=None if disk is None else str(disk),
        disk_cache_gib=bounds.disk_bytes / GIB,
    )


def _with_steps_run_again(opened: OpenedModel, max_tokens: int) -> OpenedModel:
    """Steps of up to so many tokens go through what records them, also without a GPU."""
    assert isinstance(opened.runner, ModelRunner)
    graphs = with_graphs(
        opened.runner, Rerun(), max_tokens=max_tokens, max_model_len=opened.max_model_len
    )
    return replace(opened, runner=graphs)


def _computer(opened: OpenedModel) -> Computer:
    facts = ModelFacts(
        fingerprint=opened.fingerprint,
        vocab_size=opened.model.vocab_size,
        context_len=opened.max_model_len,
        eos_token_ids=opened.model.eos_token_ids,
        device=opened.device,
        dtype=opened.dtype,
    )
    return Computer(opened.runner, facts, opened.num_blocks, opened.block_size, MemoryError)
