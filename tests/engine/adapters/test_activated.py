"""Activated adapters, compared with PEFT. Blocks of the base model serve a prompt up to the
adapter's invocation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.link.messages import AdapterUse
from engine.link.query_messages import AdapterRead, DropAdapter, ReadAdapter
from engine.main import build_core
from engine.startup.loading import open_model
from prefix_cache.namespace import NamespacePath, adapted_fingerprint, derive_namespace
from tests.doubles.engine.memory_link import MemoryLink
from tests.engine.adapters.test_engine import NAMES, Served
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.files.adapters import make_adapter
from tests.engine.rigs.hand_driven import random_prompt

INVOCATION = [7, 8, 9]
START = 37  # token position of the adapter's first token, in the third block of 16 tokens
PROMPT = [*random_prompt(START), *INVOCATION, *random_prompt(11)]


@pytest.fixture(scope="module")
def truths(checkpoint: MakeCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return PEFT models for two activated adapters and a plain adapter, and the base model."""
    folder, base = tmp_path_factory.mktemp("adapters"), checkpoint("llama")
    made: dict[str, Any] = {"": base}
    for seed, name in enumerate(NAMES):
        fields: dict[str, Any] = {}
        if name != "three":
            fields["alora_invocation_tokens"] = INVOCATION
        made[name] = make_adapter(base, folder / name, seed, **fields)
    return made


@pytest.fixture(params=[512, 24])
def served(truths: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Served]:
    """Return an engine with these adapters; one variant's steps are smaller than a prompt."""
    config = EngineConfig.of(
        model_dir=str(truths[""].model_dir),
        socket="",
        device="cpu",
        cache_tokens=2048,
        max_batch_tokens=request.param,
        adapters_dir=str(truths["one"].folder.parent),
        adapter_slots=2,
        adapter_rank=8,
    )
    model, link = open_model(config), MemoryLink(sleeps=True)
    assert model.adapters is not None
    with closing(model.grammars), closing(model.adapters.host):
        yield Served(build_core(config, model, link), link, truths)


def say(served: Served, request_id: str, name: str, start: int = START, **fields: Any) -> None:
    """Send a request in the base model's namespace up to token `start`, and in the adapter's after
    it.
    """
    digest = served.uses[name].digest
    own = adapted_fingerprint(served.core.components.welcome.fingerprint, digest, start)
    namespace = derive_namespace(b"secret", own, ("tenant", "t"))
    path = NamespacePath.single(served.namespace(None)).until(start // 16, namespace)
    use = AdapterUse(digest, name, start)
    served.say(request_id, name, PROMPT, **{"namespace": path, "adapter": use, **fields})


def test_blocks_of_the_model_serve_every_activated_adapter(served: Served) -> None:
    served.say("base", None, PROMPT)
    served.run()
    for name in ("one", "two"):
        # the first request finds only the model's blocks, the second also the adapter's
        for number, cached in enumerate((START, 48)):
            say(served, f"{name} {number}", name)
            served.run()
            assert served.cached(f"{name} {number}") == cached
            assert served.link.tokens(f"{name} {number}") == served.greedy(name, PROMPT)
    served.say("plain", "three", PROMPT)
    served.run()
    assert served.cached("plain") == 0
    answers = {tuple(served.greedy(name, PROMPT)) for name in (None, *NAMES)}
    assert len(answers) == 4  # if answers were equal, the test would prove nothing
    # Positive control: with the model's namespace for the whole prompt, blocks beyond `start` are
    # found.
    say(served, "leak", "one", namespace=NamespacePath.single(served.namespace(None)))
    served.run()
    assert served.cached("leak") == 48


def test_blocks_of_an_activated_adapter_serve_the_model_up_to_the_place(served: Served) -> None:
    say(served, "one", "one")
    served.run()
    assert served.cached("one") == 0
    served.say("base", None, PROMPT)
    served.run()
    assert served.cached("base") == 32  # the base model finds no block of the adapter's namespace
    assert served.link.tokens("base") == served.greedy(None, PROMPT)


def test_a_mix_is_each_as_peft_answers(served: Served) -> None:
    for again in range(2):
        served.say(f"base{again}", None, PROMPT)
        served.say(f"three{again}", "three", PROMPT)
        for name in ("one", "two"):
            say(served, f"{name}{again}", name)
    served.run()
    for one in (None, *NAMES):
        for again in range(2):
            assert served.link.tokens(f"{one or 'base'}{again}") == served.greedy(one, PROMPT)


def test_a_dropped_one_leaves_the_model_its_blocks(served: Served) -> None:
    say(served, "one", "one", flow="t")
    say(served, "two", "two", flow="t")
    served.run()
    served.ask(DropAdapter(query_id="d", digest=served.uses["one"].digest, flow="t"))
    served.core.check_invariants()
    for name, cached in (("one", 32), ("two", 48)):  # "one" computed the model's two blocks
        say(served, f"{name} again", name, flow="t")
        served.run()
        assert served.cached(f"{name} again") == cached


def test_what_switches_an_adapter_on_is_answered(served: Served) -> None:
    for name in NAMES:
        reply = served.ask(ReadAdapter(query_id=name, path=name))
        assert isinstance(reply, AdapterRead)
        assert reply.invocation == (() if name == "three" else tuple(INVOCATION))
