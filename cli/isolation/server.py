"""The server under test: its facts, and requests to it as any tenant."""

import asyncio
import random
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from cli.errors import CliError, NotRatoon, ServerRefused, ServerUnreachable
from cli.isolation.cases import EntryPoint, TierCase
from cli.isolation.reading import ProbePrompt, Reading, reading_of
from cli.operating.admin_client import AdminClient, error_message, unreachable
from cli.operating.cache import STATS

_BUSY = (429, 503)
_TRIES, _LONGEST_PAUSE_S = 8, 5.0
MODULE = "module"
_VOCABULARY = 1000
_LOOKS, _LOOK_S = 200, 0.05
MODULES = "/v1/modules"
_OWN_PREFIXES = "/v1/cache/prefixes"


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of the server under test.

    `tier_tokens` is the capacity of each tier in tokens. `tier_states` is the capacity in recurrent
    states, if the model has any. `has_modules` means that prompts may have prompt modules.
    """

    version: str
    model: str
    max_model_len: int
    fingerprint: str
    block_size: int
    tier_tokens: dict[str, int]
    tier_states: dict[str, int] = {}
    has_modules: bool = False


class OwnPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A marked prefix, as shown to the tenant that marked it."""

    id: str
    tokens: int
    ttl_s: float


class _OwnPrefixes(msgspec.Struct, frozen=True):
    data: list[OwnPrefix]


class ServerUnderTest:
    """The server under test, for requests with any tenant's key.

    Requests also have the operator's key. So the server loads KV blocks from lower tiers even if
    computing them again would be faster.
    """

    def __init__(self, admin: AdminClient, session: aiohttp.ClientSession, url: str) -> None:
        """Store the connection. `facts` are unset until the caller awaits `identify`."""
        self.admin = admin
        self.url = url
        self._session = session
        self.facts: ServerFacts
        self._vocabulary: list[int]

    async def identify(self, key: str) -> None:
        """Learn `facts`, and token ids that the tokenizer uses, by requests with a tenant's key."""
        async with AdminClient(self.url, key) as tenant:
            model = (await tenant.rows("/v1/models", "data"))[0]
            version = (await tenant.call("GET", "/openapi.json"))["info"]["version"]
        stats = await self.admin.call("GET", STATS)
        block_size, lower = stats["pool"]["block_size"], stats["tiers"]["lower"]
        self.facts = ServerFacts(
            version=version,
            model=model["id"],
            max_model_len=model["max_model_len"],
            fingerprint=stats["fingerprint"],
            block_size=block_size,
            tier_tokens={TierCase.DEVICE: stats["pool"]["tokens"]["total"]}
            | {name: tier["total_blocks"] * block_size for name, tier in lower.items()},
            tier_states=_states(stats["states"]),
        )
        with suppress(ServerRefused):
            await self.store_module(key, "A module.")
            self.facts = msgspec.structs.replace(self.facts, has_modules=True)
        self._vocabulary = (await self.new_text(key, _VOCABULARY)).ids

    async def ask(
        self,
        key: str,
        entry: EntryPoint,
        prompt: ProbePrompt,
        fields: Mapping[str, object] | None = None,
    ) -> Reading:
        """Request one token. Raises ServerRefused if the server still refuses after retries."""
        content = await self._post(entry.path, key, self.body(entry, prompt, fields))
        return reading_of(content)

    async def probe(self, key: str, entry: EntryPoint, prompt: ProbePrompt) -> Reading:
        """Return the cached tokens that a request would find, by `/v1/cache/probe`."""
        body = self.body(entry, prompt)
        del body["cache"]  # the field says how to load blocks, and a probe loads none
        content = await self._post("/v1/cache/probe", key, {"url": entry.path, "body": body})
        found = msgspec.json.decode(content)
        return Reading(found["prompt_tokens"], found["cached_tokens"], found.get("tiers", {}))

    async def own_prefixes(self, key: str) -> list[OwnPrefix]:
        """List the prefixes that a tenant has marked, as shown to that tenant."""
        content = await self._send("GET", _OWN_PREFIXES, key)
        return msgspec.json.decode(content, type=_OwnPrefixes).data

    async def deleted(self, key: str, prefix_id: str) -> tuple[int, str]:
        """Delete a prefix as a tenant, and return the status and the error's text."""
        try:
            await self._send("DELETE", f"{_OWN_PREFIXES}/{prefix_id}", key)
        except ServerRefused as refusal:
            return refusal.status, str(refusal)
        return 200, ""

    async def store_module(self, key: str, text: str) -> str:
        """Store a module schema as a tenant, and return its id.

        The first half of `text` is an unnamed module, and the second half is MODULE.
        """
        half = len(text) // 2
        modules = [{"text": text[:half]}, {"name": MODULE, "text": text[half:]}]
        return await self.store_schema(key, modules)

    async def store_schema(self, key: str, modules: list[dict[str, Any]]) -> str:
        """Store a module schema as a tenant, and return its id."""
        stored = await self._post(MODULES, key, {"modules": modules})
        schema_id: str = msgspec.json.decode(stored)["id"]
        return schema_id

    async def answered(
        self, method: str, path: str, key: str, body: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any] | None, str]:
        """Send a request as a tenant, and return the answer, or None and the error."""
        try:
            content = await self._send(method, path, key, body)
        except ServerRefused as refusal:
            return None, f"{refusal.status} {refusal}"
        return msgspec.json.decode(content), ""

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers of a request with this tenant's key."""
        return {"Authorization": f"Bearer {key}", **self.admin.beside_a_tenants_key}

    def body(
        self, entry: EntryPoint, prompt: ProbePrompt, fields: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Compose the JSON body of a request for one token."""
        body = {"model": self.facts.model, "max_tokens": 1, "temperature": 0, **(fields or {})}
        body["cache"] = {"load": "always"}
        if entry.kind == "chat":
            user = {"role": "user", "content": prompt.text}
            body["messages"] = [*opening_messages(prompt.opening), user]
        else:
            body["prompt"] = prompt.ids if entry.kind == "ids" else prompt.opening + prompt.text
        if entry.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def new_text(self, key: str, length: int, opening: str = "") -> ProbePrompt:
        """Write a prompt of unsent words after `opening`, of at least `length` tokens."""
        text = ""
        while (missing := length - len(await self._tokens(key, text))) > 0:
            text += "".join(f"{secrets.token_hex(3)} " for _ in range(missing // 6 + 1))
        return ProbePrompt(await self._tokens(key, opening + text), text, opening)

    def new_ids(self, length: int) -> ProbePrompt:
        """Draw a prompt of `length` unsent token ids."""
        return ProbePrompt(random.choices(self._vocabulary, k=length))

    def new_prompts(self, tokens: int, length: int) -> list[ProbePrompt]:
        """Draw prompts of `length` ids, or of the model's maximum, with `tokens` ids in total.

        The prompts begin with different ids, if the vocabulary is large enough. So no prompt finds
        another prompt's first token in the cache.
        """
        length = min(length, self.facts.max_model_len - 2)
        sizes = [min(length, tokens - at) for at in range(0, tokens, max(length, 1))]
        firsts = list(set(self._vocabulary))
        random.shuffle(firsts)
        prompts = [self.new_ids(size) for size in sizes]
        for prompt, first in zip(prompts, firsts, strict=False):
            prompt.ids[0] = first
        return prompts

    async def copied(self) -> None:
        """Wait until no copy between tiers runs, but give up after `_LOOKS` checks."""
        for _ in range(_LOOKS):
            stats = await self.admin.call("GET", STATS)
            if not any(move["under_way"] for move in stats["tiers"]["moves"]):
                return
            await asyncio.sleep(_LOOK_S)

    async def restarted(self) -> None:
        """Wait until the engine has restarted. Raises CliError if it then serves another model."""
        asked_at = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                stats = await self.admin.call("GET", STATS)
            except (ServerRefused, ServerUnreachable, NotRatoon):
                continue
            if stats["uptime_s"] < time.monotonic() - asked_at:
                break
        if stats["fingerprint"] != self.facts.fingerprint:
            raise CliError("another model is served now than before the restart")

    async def _tokens(self, key: str, text: str) -> list[int]:
        answer = msgspec.json.decode(await self._post("/tokenize", key, {"prompt": text}))
        ids: list[int] = answer["tokens"]
        return ids

    async def _post(self, path: str, key: str, body: dict[str, Any]) -> bytes:
        return await self._send("POST", path, key, body)

    async def _send(
        self, method: str, path: str, key: str, body: dict[str, Any] | None = None
    ) -> bytes:
        for attempt in range(_TRIES):
            try:
                async with self._session.request(
                    method, self.url + path, json=body, headers=self.headers(key)
                ) as reply:
                    content = await reply.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise unreachable(self.url, error) from error
            if reply.status == 200:
                return content
            if reply.status not in _BUSY or attempt == _TRIES - 1:
                break
            await asyncio.sleep(min(float(reply.headers.get("Retry-After", 1)), _LONGEST_PAUSE_S))
        raise ServerRefused(error_message(content, reply.status), status=reply.status)


def _states(stats: dict[str, Any]) -> dict[str, int]:
    if not stats["total"]:
        return {}
    return {TierCase.DEVICE: stats["total"]} | {n: at["total"] for n, at in stats["lower"].items()}


def using_module(schema_id: str, name: str) -> dict[str, Any]:
    """Return the field of a request that uses one prompt module."""
    return {"ratoon": {"modules": {"schema": schema_id, "use": [name]}}}


def opening_messages(opening: str) -> list[dict[str, str]]:
    """Return a chat's system message with the published opening, if there is an opening."""
    return [{"role": "system", "content": opening}] if opening else []
