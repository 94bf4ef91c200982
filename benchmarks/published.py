"""Time to the first token behind a published system prompt, compared with sharing everything.

    python -m benchmarks.published

Many tenants ask one question each behind one system prompt, one after another, with the handbook
model in this process. With `published` the system prompt is a published prefix, pinned, and the
rest is in the tenant's own namespace; with `all` there is one namespace for everyone; with
`private` each tenant has its own. The three alternate from tenant to tenant, so that other load
affects all alike. Choosing the namespaces and hashing the blocks are part of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from benchmarks.shapes import EMBEDDED
from engine.messages import Generate, Pin, SamplingParams, Tokens, pack_token_ids
from gateway.caller import Caller
from gateway.chat_template import ChatTemplate
from gateway.namespaces import Namespaces
from gateway.prefix_tokens import PrefixTokens
from gateway.published import filled_up
from gateway.published_index import Entry, PublishedIndex
from gateway.state.records import EVERYONE, PrefixSource
from gateway.tokenizer import TokenIds, Tokenizer
from handbook.text import make_handbook, make_questions
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath
from tests.seams.real_engine import CLIENT, Bounds, RealEngine

BOUNDS = Bounds(num_blocks=1024, block_size=16, max_batch_tokens=512, max_running=8, steps_ahead=1)
SECRET = b"s" * 32
FIRST_OF_ITS_OWN = 300  # an id; each tenant has the one behind the one before
SAMPLING = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
WARM_UP = 5  # tenants whose times are not counted


@dataclass(frozen=True)
class Way:
    """How prompts are shared."""

    name: str
    namespaces: Namespaces


class Bench:
    """The engine, and what is asked of it."""

    def __init__(self, facts: int) -> None:
        self.engine = RealEngine(str(EMBEDDED), BOUNDS)
        self.tokenizer = Tokenizer.load(EMBEDDED)
        template = ChatTemplate.load(EMBEDDED)
        if template is None:
            raise ValueError("the model has no chat template")
        self.template = template
        self.handbook = make_handbook(0, facts)
        self.system = {"role": "system", "content": self.handbook.text}
        self.index = PublishedIndex()
        self.asked = 0
        self.published = 0  # tokens of the system prompt, once it is

    def publish(self, way: Way) -> int:
        """Publish and pin the system prompt; returns its tokens."""
        reader = PrefixTokens(self.tokenizer, self.template)
        tokens = reader.of(PrefixSource(messages=[self.system]))
        size = BOUNDS.block_size
        whole = filled_up(tokens, size)
        self.index.renew(size, [Entry(EVERYONE, tokens)])
        namespace = way.namespaces.published(EVERYONE, self.engine.fingerprint)
        keys = block_keys(NamespacePath.single(namespace), whole, size)
        ids = pack_token_ids(whole)
        pin = Pin(query_id="q", pin_id="p", token_ids=ids, namespace=namespace, block_keys=keys)
        self.engine.link.say(pin, CLIENT)
        self.engine.run()
        self.published = len(tokens)
        return self.published

    def prompt(self, number: int) -> TokenIds:
        """Tenant `number`'s chat.

        The first token of its question is like no other's: what is published is all that
        tenants have in common.
        """
        [question] = make_questions(self.handbook, number)
        chat = [self.system, {"role": "user", "content": question.text}]
        text = self.template.render(chat, add_generation_prompt=True)
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        tokens[self.published] = FIRST_OF_ITS_OWN + number
        return tokens

    def first_token(self, way: Way, tenant: str, prompt: TokenIds) -> tuple[float, int]:
        """Seconds to the first token, and the prompt's cached tokens."""
        self.asked += 1
        request_id, size = f"r{self.asked}", BOUNDS.block_size
        caller = Caller(tenant, "key")
        began = time.perf_counter()
        path = way.namespaces.path(caller, None, prompt, self.engine.fingerprint, size)
        request = Generate(
            request_id=request_id,
            token_ids=pack_token_ids(prompt),
            namespaces=path.spans,
            block_keys=block_keys(path, prompt, size),
            flow=tenant,
            sampling=SAMPLING,
        )
        self.engine.link.say(request, CLIENT)
        while not any(isinstance(e, Tokens) for e in self.engine.link.events(request_id)):
            self.engine.core.step()
        seconds = time.perf_counter() - began
        while not self.engine.core.is_idle:
            self.engine.core.step()
        return seconds, self.engine.finished(request_id).cached_tokens


def measure(tenants: int, facts: int, say: Callable[[str], None]) -> None:
    """Ask and print."""
    bench = Bench(facts)
    published = Way("published", Namespaces(SECRET, published=bench.index))
    ways = [
        published,
        Way("all", Namespaces(SECRET, share_all=True)),
        Way("private", Namespaces(SECRET)),
    ]
    shared = bench.publish(published)
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    cached: dict[str, list[int]] = {way.name: [] for way in ways}
    for number in range(tenants + WARM_UP):
        prompt = bench.prompt(number)
        turn = number % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            taken, found = bench.first_token(way, f"{way.name}-{number}", prompt)
            if number >= WARM_UP:
                seconds[way.name].append(taken)
                cached[way.name].append(found)
    say(f"{tenants} tenants, {shared} of {len(prompt)} tokens published")
    base = np.median(seconds["all"])
    for way in ways:
        times = np.array(seconds[way.name]) * 1e3
        p50, p95 = np.percentile(times, (50, 95))
        found_tokens = np.median(cached[way.name])
        say(f"{way.name:10} TTFT p50 {p50:.2f} ms, p95 {p95:.2f} ms, cached {found_tokens:.0f}")
        say(f"{'':10} p50 {p50 / base / 1e3:.3f} of sharing everything")


def main(
    tenants: Annotated[int, typer.Option(help="Who ask, one after another.")] = 200,
    facts: Annotated[int, typer.Option(help="Of the system prompt, 20 tokens each.")] = 60,
) -> None:
    """Print one line a way of sharing."""
    measure(tenants, facts, print)


if __name__ == "__main__":
    typer.run(main)
