"""A draft head beside adapters: it drafts for requests with an adapter too, and changes no
answer.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from msgspec import structs

from engine.config import EngineConfig
from engine.link.messages import AdapterUse, SamplingParams
from engine.link.query_messages import AdapterRead, ReadAdapter
from tests.engine.rigs.checkpoints import Checkpoint, Recipe, make_checkpoint
from tests.engine.rigs.files.adapters import PeftAdapter, make_adapter
from tests.engine.rigs.files.draft_heads import HeadAlone, Truth, save_with_head
from tests.engine.rigs.hand_driven import random_prompt
from tests.seams.support.mix import NAMESPACES
from tests.seams.support.real_engine import Bounds, RealEngine

COUNT = 24
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True)
PROMPT = random_prompt(45)


def read(engine: RealEngine, name: str) -> AdapterUse:
    """Let the engine read an adapter."""
    engine.link.say(ReadAdapter(query_id=name, path=name))
    while not any(engine.link.sent.values()):
        engine.step()
    [[reply]] = engine.link.sent.values()
    assert isinstance(reply, AdapterRead)
    assert reply.error() is None
    return AdapterUse(reply.digest, name)


def greedy(truth: Checkpoint | PeftAdapter) -> list[int]:
    ids = list(PROMPT)
    for _ in range(COUNT):
        ids.append(int(truth.logits(ids)[-1].argmax()))
    return ids[len(PROMPT) :]


def test_a_head_drafts_for_rows_with_an_adapter(tmp_path: Path) -> None:
    truth = Truth(make_checkpoint(Recipe("Qwen2"), tmp_path / "base"))
    (tmp_path / "head").mkdir()
    model_dir = save_with_head(truth, tmp_path / "head", truth.tensors())
    base = Checkpoint(model_dir, truth.model)
    adapter = make_adapter(base, tmp_path / "adapters" / "one", std=0.05)

    def over(config: EngineConfig) -> EngineConfig:
        model = structs.replace(
            config.model, adapters_dir=str(adapter.folder.parent), adapter_slots=2, adapter_rank=8
        )
        return structs.replace(config, model=model)

    bounds = Bounds(64, 16, 24, 8)
    with closing(RealEngine(str(model_dir), bounds, over=over, drafting=HeadAlone())) as engine:
        use = read(engine, "one")
        engine.submit("plain", PROMPT, GREEDY, namespace=NAMESPACES[0])
        engine.submit("adapted", PROMPT, GREEDY, namespace=NAMESPACES[1], adapter=use)
        engine.run()
        for name in ("plain", "adapted"):
            drafted, accepted = engine.finished(name).drafts["mtp"]
            assert drafted > accepted > 0
        answers = [engine.tokens("plain"), engine.tokens("adapted")]
    assert answers == [greedy(base), greedy(adapter)]
    assert answers[0] != answers[1], "the control"
