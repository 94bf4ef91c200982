"""The prompts of the timing test's trials: token ids, or a stored prompt module.

Both tenants have stored the same prompt modules. `timed_requests.py` sends and times the prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from cli.isolation.reading import ProbePrompt
from cli.isolation.server import MODULES, ServerUnderTest, using_module

_PROMPTS_A_TRIAL = 3
_MODULES = 10 * _PROMPTS_A_TRIAL  # number of prompt modules of a schema
_AFTER_MODULE = 4  # number of tokens of a prompt after its prompt module


class TrialPrompt(NamedTuple):
    """A prompt of a trial, and the fields by which each tenant names its prompt module."""

    prompt: ProbePrompt
    own_fields: Mapping[str, object]
    other_fields: Mapping[str, object]


class TrialPrompts(Protocol):
    """A source of new prompts for the trials."""

    async def prepare(self) -> None:
        """Prepare the prompts of the next trial."""
        ...

    def new(self) -> TrialPrompt:
        """Return the next prompt."""
        ...


class PlainPrompts:
    """Prompts of `length` token ids. Implements `TrialPrompts`."""

    def __init__(self, server: ServerUnderTest, length: int) -> None:
        self._server = server
        self._length = length

    async def prepare(self) -> None:
        """Do nothing."""

    def new(self) -> TrialPrompt:
        return TrialPrompt(self._server.new_ids(self._length), {}, {})


class PromptsOfModules:
    """Prompts of one prompt module of about `length` tokens.

    Both tenants have stored a schema of these modules. The schema is a union of many modules, so
    that all modules begin at one position. Implements `TrialPrompts`.
    """

    def __init__(self, server: ServerUnderTest, victim: str, attacker: str, length: int) -> None:
        """Store the server, both tenants' API keys, and the length of prompts in tokens."""
        self._server = server
        self._keys = victim, attacker
        self._length = length
        self._schemas: list[str] = []
        self._names: list[str] = []  # names of prompt modules that no trial has used

    async def prepare(self) -> None:
        """Store a new schema for both tenants once all modules of the last schema are used."""
        if len(self._names) >= _PROMPTS_A_TRIAL:
            return
        for key, old in zip(self._keys, self._schemas, strict=False):
            await self._server.answered("DELETE", f"{MODULES}/{old}", key)
        drawn = await self._server.new_text(self._keys[0], _MODULES * self._length)
        size = -(-len(drawn.text) // _MODULES)
        texts = [drawn.text[at : at + size] for at in range(0, len(drawn.text), size)]
        named = [{"name": f"m{at}", "text": text} for at, text in enumerate(texts)]
        stored = [await self._server.store_schema(key, [{"union": named}]) for key in self._keys]
        self._schemas, self._names = stored, [one["name"] for one in named]

    def new(self) -> TrialPrompt:
        name, prompt = self._names.pop(), self._server.new_ids(_AFTER_MODULE)
        own, others = (using_module(schema, name) for schema in self._schemas)
        return TrialPrompt(prompt, own, others)
