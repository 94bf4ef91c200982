"""An engine that serves adapters, compared with PEFT; blocks of one adapter never serve another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.config import EngineConfig
from engine.copies import COPY_WAIT_S
from engine.core import IDLE_WAIT_S, EngineCore
from engine.link.event_messages import Failed, Finished
from engine.link.messages import AdapterUse, SamplingParams
from engine.link.query_messages import (
    AdapterDropped,
    AdapterRead,
    DropAdapter,
    Flush,
    Flushed,
    ReadAdapter,
)
from engine.main import build_core
from engine.models.errors import WrongSetting
from engine.startup.loading import open_model
from prefix_cache.namespace import Namespace, adapted_fingerprint, derive_namespace
from tests.doubles.engine.memory_link import MemoryLink
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.files.adapters import PeftAdapter, make_adapter
from tests.engine.rigs.hand_driven import random_prompt
from tests.engine.rigs.rig import generate

CLIENT = b"gateway"
PROMPT = random_prompt(40)
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
NAMES = ("one", "two", "three")


class Served:
    """An engine with two slots and three adapters, stepped by hand."""

    def __init__(self, core: EngineCore, link: MemoryLink, truths: dict[str, Any]) -> None:
        self.core, self.link, self.truths = core, link, truths
        self.uses = {name: self.read(name) for name in NAMES}

    def ask(self, query: ReadAdapter | DropAdapter | Flush) -> Any:
        count = len(self.link.sent[CLIENT])
        self.link.say(query)
        while len(self.link.sent[CLIENT]) == count:
            self.core.step()
        return self.link.sent[CLIENT][-1]

    def read(self, path: str) -> AdapterUse:
        reply = self.ask(ReadAdapter(query_id=path, path=path))
        assert isinstance(reply, AdapterRead)
        assert reply.error() is None
        return AdapterUse(reply.digest, path)

    def namespace(self, name: str | None) -> Namespace:
        digest = None if name is None else self.uses[name].digest
        own = adapted_fingerprint(self.core.components.welcome.fingerprint, digest)
        return derive_namespace(b"secret", own, ("tenant", "t"))

    def say(self, request_id: str, name: str | None, prompt: list[int], **fields: Any) -> None:
        adapter, namespace = None if name is None else self.uses[name], self.namespace(name)
        self.link.say(
            generate(
                request_id,
                prompt,
                sampling=GREEDY,
                block_size=16,
                **{"adapter": adapter, "namespace": namespace, **fields},
            )
        )

    def run(self) -> None:
        self.core.step()
        while not self.core.is_idle:
            self.core.step()
            self.core.check_invariants()

    def cached(self, request_id: str) -> int:
        last = self.link.last(request_id)
        assert isinstance(last, Finished), last
        return last.reused.tokens

    def greedy(self, name: str | None, prompt: list[int]) -> list[int]:
        ids = list(prompt)
        for _ in range(GREEDY.max_tokens):
            ids.append(int(self.truths[name or ""].logits(ids)[-1].argmax()))
        return ids[len(prompt) :]


@pytest.fixture(scope="module")
def truths(checkpoint: MakeCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, base = tmp_path_factory.mktemp("adapters"), checkpoint("llama")
    adapters = {name: make_adapter(base, folder / name, seed) for seed, name in enumerate(NAMES)}
    return {"": base, **adapters}


@pytest.fixture
def served(truths: dict[str, Any]) -> Iterator[Served]:
    folder: PeftAdapter = truths["one"]
    config = EngineConfig.of(
        model_dir=str(truths[""].model_dir),
        socket="",
        device="cpu",
        cache_tokens=2048,
        adapters_dir=str(folder.folder.parent),
        adapter_slots=2,
        adapter_rank=8,
    )
    model, link = open_model(config), MemoryLink(sleeps=True)
    assert model.adapters is not None
    with closing(model.grammars), closing(model.adapters.host):
        yield Served(build_core(config, model, link), link, truths)


def test_requests_of_more_adapters_than_slots_are_each_as_peft_answers(served: Served) -> None:
    prompts = {name: random_prompt(10 + 7 * at) for at, name in enumerate([None, *NAMES])}
    for name, prompt in prompts.items():
        for again in range(2):
            served.say(f"{name} {again}", name, prompt)
    served.run()
    for name, prompt in prompts.items():
        expected = served.greedy(name, prompt)
        assert [served.link.tokens(f"{name} {again}") for again in range(2)] == [expected] * 2
    answers = {tuple(served.greedy(name, PROMPT)) for name in prompts}
    assert len(answers) == 4  # if answers were equal, the test would prove nothing


def test_an_idle_engine_looks_often_whether_an_adapter_has_been_read(served: Served) -> None:
    served.core.step()
    served.link.waits.clear()
    served.read("one")
    first, *others = served.link.waits
    assert first == IDLE_WAIT_S  # no question had arrived yet
    assert all(wait == COPY_WAIT_S for wait in others)
    served.core.step()
    assert served.link.waits[-1] == IDLE_WAIT_S


def test_what_one_adapter_has_computed_serves_no_other(served: Served) -> None:
    for name in (None, "one", "two"):
        for number in range(2):
            served.say(f"{name} {number}", name, PROMPT)
            served.run()
        assert served.cached(f"{name} 0") == 0
        assert served.cached(f"{name} 1") == 32  # the adapter's own blocks
        assert served.link.tokens(f"{name} 1") == served.greedy(name, PROMPT)
    # Positive control: without the digest in the namespace, blocks are found and the answer is
    # wrong.
    served.say("leak", "three", PROMPT, namespace=served.namespace("one"))
    served.run()
    assert served.cached("leak") == 32


def test_a_dropped_adapter_leaves_no_block(served: Served) -> None:
    for name in ("one", "two"):
        served.say(name, name, PROMPT, flow="t")
    served.run()
    digest = served.uses["one"].digest
    dropped = served.ask(DropAdapter(query_id="d", digest=digest, flow="t"))
    assert isinstance(dropped, AdapterDropped)
    assert dropped.blocks == 2
    served.core.check_invariants()
    for name in ("one", "two"):
        served.say(f"{name} again", name, PROMPT, flow="t")
    served.run()
    assert served.cached("one again") == 0
    assert served.cached("two again") == 32


def test_a_running_request_of_a_dropped_adapter_ends_and_leaves_no_block(served: Served) -> None:
    served.say("running", "one", PROMPT, flow="t")
    while not served.link.tokens("running"):
        served.core.step()
    served.ask(DropAdapter(query_id="d", digest=served.uses["one"].digest, flow="t"))
    served.run()
    assert served.link.tokens("running") == served.greedy("one", PROMPT)
    served.say("again", "one", PROMPT, flow="t")
    served.run()
    assert served.cached("again") == 0


def test_a_flush_of_a_flow_forgets_the_adapters_that_it_alone_has(served: Served) -> None:
    for name, flow in (("one", "t"), ("one", "u"), ("two", "t")):
        served.say(f"{name} {flow}", name, PROMPT, flow=flow)
    served.run()
    assert isinstance(served.ask(Flush(query_id="f", flow="t", flush_id="fl_1")), Flushed)
    folders = [served.truths[name].folder for name in ("one", "two")]
    for folder in folders:
        folder.rename(folder.with_suffix(".away"))
    try:
        for name in ("one", "two"):
            served.say(f"{name} again", name, PROMPT, flow="u")
        served.run()
    finally:
        for folder in folders:
            folder.with_suffix(".away").rename(folder)
    assert isinstance(served.link.last("one again"), Finished), "the control: not read again"
    assert isinstance(served.link.last("two again"), Failed)


def test_another_digest_than_the_files_have_ends_the_request(served: Served) -> None:
    use = msgspec.structs.replace(served.uses["one"], digest=bytes(32))
    served.say("wrong", "one", PROMPT, adapter=use)
    served.run()
    failed = served.link.last("wrong")
    assert isinstance(failed, Failed)
    assert failed.code == "adapter_not_served"
    assert "changed" in failed.message
    served.say("right", "one", PROMPT)
    served.run()
    assert served.link.tokens("right") == served.greedy("one", PROMPT)


@pytest.mark.parametrize(
    "settings", [{"adapters_dir": "/nowhere"}, {"adapter_slots": 0}, {"adapter_rank": 129}]
)
def test_a_setting_that_cannot_be_is_an_error(
    checkpoint: MakeCheckpoint, tmp_path: Path, settings: dict[str, Any]
) -> None:
    fields = {"adapters_dir": str(tmp_path), **settings}
    config = EngineConfig.of(
        model_dir=str(checkpoint("llama").model_dir), socket="", device="cpu", **fields
    )
    with pytest.raises(WrongSetting, match="adapter"):
        open_model(config)
