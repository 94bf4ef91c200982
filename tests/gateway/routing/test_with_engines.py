"""A prompt goes to the engine that has it cached, until this engine is gone.

The router is the one used in service. Two engines listen on sockets, and only their model is a
double.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.link.event_messages import Tokens
from engine.link.gateway_end.client import EngineClient
from engine.link.messages import Generate
from gateway.routing.prompt import routing_request
from gateway.routing.routers.first_token import FirstTokenRouter
from tests.doubles.engine.engine_thread import EngineThread
from tests.engine.rigs.rig import generate
from tests.engine.rigs.streams import welcomed

READY = ("a", "b")
PROMPT = range(1, 40)


async def serve(
    router: FirstTokenRouter, name: str, client: EngineClient, request: Generate
) -> int:
    """Send a request to this replica; return its number of cached tokens."""
    cached = 0
    router.sent(name, routing_request(request))
    async for event in client.generate(request):
        if isinstance(event, Tokens) and event.reused is not None:
            cached = event.reused.tokens
            router.began(name, request.request_id, event.reused, event.timing)
    router.ended(name, request.request_id)
    return cached


async def test_a_prompt_goes_where_it_is_cached_until_that_engine_is_gone() -> None:
    router = FirstTokenRouter(time.monotonic)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="ratoon"))
        clients = {}
        for name in READY:
            path = str(Path(directory, name))
            stack.enter_context(EngineThread(path))
            clients[name] = EngineClient(path, on_cache_events=partial(router.heard, name))
            await clients[name].start()
            stack.push_async_callback(clients[name].close)
            await welcomed(clients[name])
        other = generate("other", [50, 51, 52], max_tokens=1)
        assert (
            router.choose(routing_request(generate("x", PROMPT)), READY).replica == "a"
        )  # the first of equally good replicas
        assert await serve(router, "b", clients["b"], generate("first", PROMPT, max_tokens=1)) == 0
        await serve(router, "a", clients["a"], other)
        again = generate("again", PROMPT, max_tokens=1)
        async with asyncio.timeout(60):  # seconds, reached only by a test that hangs
            while router.choose(routing_request(again), READY).replica != "b":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await serve(router, "b", clients["b"], again) >= 36
        router.gone("b")
        assert router.choose(routing_request(generate("x", PROMPT)), READY).replica == "a"
