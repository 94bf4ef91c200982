"""A gateway in this process with an engine that gives scripted answers, for any family."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import tokenizers

from engine.link.messages import Welcome
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine
from tests.doubles.gateway.served import Served, config_of, serving
from tests.zoo.family import Family


@dataclass(frozen=True)
class ZooGateway:
    """The gateway of a family's model, and its scripted engine."""

    family: Family
    served: Served
    engine: FakeEngine
    inner: tokenizers.Tokenizer
    client: openai.OpenAI
    anthropic: anthropic.Anthropic

    def says(self, text: str) -> None:
        """Let the model write `text`, in which control tokens are recognised, and end its turn."""
        ids = self.ids(text)
        self.engine.script = lambda _: ids

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text that the model writes, including control tokens."""
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids

    def prompt(self) -> str:
        """The text of the last prompt, including control tokens."""
        ids = memoryview(self.engine.requests[-1].token_ids).cast("i").tolist()
        text: str = self.inner.decode(ids, skip_special_tokens=False)
        return text


def welcome_of(family: Family, inner: tokenizers.Tokenizer) -> Welcome:
    """Return the welcome of an engine that runs the family's model."""
    ends = [inner.token_to_id(end) for end in family.ends]
    return msgspec.structs.replace(
        WELCOME,
        vocab_size=inner.get_vocab_size(),
        max_model_len=1 << 17,
        eos_token_ids=tuple(one for one in ends if one is not None),
    )


@contextmanager
def zoo_gateway(
    family: Family, directory: Path, *, real: bool = False, **settings: Any
) -> Iterator[ZooGateway]:
    """Serve the family's model from `directory`; further arguments are settings of the gateway."""
    model = family.write(directory / "model", real=real)
    inner = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    engine = FakeEngine(welcome_of(family, inner))
    with (
        serving(config_of(model, directory / "data", **settings), engine) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, max_retries=0) as client,
        anthropic.Anthropic(base_url=served.url, api_key=served.key, max_retries=0) as messages,
    ):
        yield ZooGateway(family, served, engine, inner, client, messages)
