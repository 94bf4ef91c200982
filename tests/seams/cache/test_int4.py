"""With int4 weights, cached answers equal uncached ones, and other formats find no blocks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from engine.startup.warm_up import warm_up
from tests.engine.rigs.files.int4_checkpoints import KINDS, make_int4
from tests.seams.cache.test_other_models import PRESSURES, SEED, drawn_mix
from tests.seams.support.mix import NAMESPACES, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

PROMPT = tuple((11 * i * i + 5) % 50 + 5 for i in range(70))
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_any_reuse_gives_the_tokens_of_each_request_alone(kind: str, tmp_path: Path) -> None:
    """The requests are preempted and evicted, and run in captured steps and in other steps."""
    model_dir = make_int4(KINDS[kind], tmp_path).int4.model_dir
    alone, mix = alone_on(model_dir), drawn_mix(SEED)
    for pressure in PRESSURES:
        with closing(RealEngine(str(model_dir), pressure)) as engine:
            run_mix(engine, mix)
            for number, ask in enumerate(mix):
                assert engine.tokens(str(number)) == alone(ask)
            stats = engine.core.stats()
            assert stats.windows["all"].hit_tokens > 0
            assert stats.preemptions > 0
            engine.expect_nothing_left()


@pytest.mark.parametrize("same", [True, False])
def test_blocks_are_not_found_by_a_model_of_the_very_numbers_written_out(
    tmp_path: Path, *, same: bool
) -> None:
    checkpoint = make_int4(KINDS["awq"], tmp_path)
    bounds, disk = Bounds(12, 16, 64, 3, disk_bytes=1 << 20), tmp_path / "disk"
    first = RealEngine(str(checkpoint.int4.model_dir), bounds, disk=disk)
    for name in "ab":
        first.submit(name, PROMPT, GREEDY, namespace=NAMESPACES[0])
        first.run()
    assert first.finished("b").reused.tokens == 64
    first.core.spill(60.0)
    first.close()
    after = checkpoint.int4.model_dir if same else checkpoint.written_out
    second = RealEngine(str(after), bounds, disk=disk)
    assert (second.fingerprint == first.fingerprint) == same
    assert bool(warm_up(second.core.components)) == same
    second.submit("again", PROMPT, GREEDY, namespace=NAMESPACES[0])
    second.run()
    assert second.finished("again").reused.tokens == (64 if same else 0)
    assert second.tokens("again") == first.tokens("b"), "the same numbers, whoever computes them"
    second.close()
