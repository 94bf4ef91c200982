"""A prefix that is fetched before its pin is not computed again, in shared tiers or partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.link.messages import FlowQuota, Generate, Partition, SamplingParams, pack_token_ids
from engine.link.query_messages import Flush, Pin
from prefix_cache.eviction.shares import PUBLISHED
from prefix_cache.namespace import NamespacePath
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.pair import PROMPT, SIZE, WHOLE, A, B, Pair, keys_of, leased, pair_of
from tests.seams.support.real_engine import CLIENT, RealEngine

PREFIX = PROMPT[: WHOLE * SIZE]
ONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def pin(engine: RealEngine) -> int:
    """Pin the prefix; return the number of computed tokens."""
    said = Pin(
        query_id="q",
        pin_id="p",
        token_ids=pack_token_ids(PREFIX),
        namespace=bytes(A),
        block_keys=keys_of(PREFIX, A),
    )
    before = engine.core.stats().windows["all"].computed_tokens
    engine.link.say(said, CLIENT)
    engine.run()
    engine.run()
    assert leased(engine) == WHOLE
    return engine.core.stats().windows["all"].computed_tokens - before


def fetch(pair: Pair) -> None:
    """Fetch the prefix, as a gateway asks a new replica to do before it pins the prefix."""
    request = Generate(
        request_id="first~p",
        token_ids=pack_token_ids(PREFIX),
        namespaces=NamespacePath.single(A).spans,
        block_keys=keys_of(PREFIX, A),
        flow=PUBLISHED,
        priority="batch",
        sampling=ONE,
        source=pair.source(only=True),
    )
    pair.here.link.say(request, CLIENT)
    pair.until(lambda: pair.here.core.is_idle)
    assert pair.here.finished("first~p").reused.fetched == (WHOLE - 1) * SIZE


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_what_was_fetched_is_not_computed_for_the_pin(
    checkpoint: Checkpoint, tmp_path: Path, is_partitioned: bool
) -> None:
    with pair_of(checkpoint.model_dir, str(tmp_path / "x.sock")) as pair:
        if is_partitioned:
            flows = {A.hex(): FlowQuota(), B.hex(): FlowQuota()}
            for engine in pair.both():
                engine.link.say(Partition(flows=flows), CLIENT)
        assert pin(pair.there) == len(PREFIX)  # positive control: neither engine has it
        fetch(pair)
        pair.turn()
        assert pin(pair.here) == SIZE


def test_what_is_flushed_before_it_is_pinned_is_not_held(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with pair_of(checkpoint.model_dir, str(tmp_path / "x.sock")) as pair:
        pin(pair.there)
        fetch(pair)
        assert leased(pair.here) == WHOLE - 1
        pair.here.link.say(Flush(query_id="q"), CLIENT)
        pair.here.step()
        assert leased(pair.here) == 0
        assert pin(pair.here) == len(PREFIX)
