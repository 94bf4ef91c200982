"""`ratoon chat`: a conversation, with the cache's share of the prompt after each turn."""

import asyncio
import sys
import time
from contextlib import suppress
from typing import Annotated, Any

import aiohttp
import msgspec
import typer

from cli.asking.turn import Turn
from cli.echo import echo
from cli.errors import ServerRefused
from cli.operating.admin_client import AdminClient, error_message, unreachable
from cli.operating.server_target import load_target
from cli.options.options import TargetFlags

EXIT = "/exit"
_PATH = "/v1/chat/completions"
_SILENT_S = 120.0  # seconds without data after which the answer is given up


def chat(
    target: TargetFlags,
    system: Annotated[
        str | None, typer.Option(help="The system message.", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens of an answer.", min=1)] = 512,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 always takes the likeliest token.", min=0, max=2, show_default=False),
    ] = None,
) -> None:
    """Talk to the model; the cached tokens and the speed are shown after each turn.

    Each line of standard input is a turn; /exit or the end of the input ends the conversation.
    Answers go to standard output, numbers and input prompts to standard error.

    Example:

        ratoon chat --system "The door code for Oslo is 9062."
    """
    url, key = load_target(target)
    messages = [{"role": "system", "content": system}] if system else []
    # The input is read outside the event loop, where Ctrl-C interrupts it at once.
    with asyncio.Runner() as runner, suppress(KeyboardInterrupt):
        model = target.served_model or runner.run(_first_model(url, key))
        common: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
        if temperature is not None:
            common["temperature"] = temperature
        while (said := _next_line()) is not None:
            asked = [*messages, {"role": "user", "content": said}]
            try:
                turn = runner.run(_answer(url, key, {**common, "messages": asked}))
            except ServerRefused as refused:  # the next turn may succeed, for example after a limit
                echo(f"ratoon: {refused.message}", err=True)
                continue
            echo(turn.numbers(), err=True)
            messages = [*asked, {"role": "assistant", "content": turn.text}]


async def _first_model(url: str, key: str) -> str:
    async with AdminClient(url, key) as client:
        return await client.first_model()


def _next_line() -> str | None:
    while True:
        if sys.stdin.isatty():
            echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line or line.strip() == EXIT:
            return None
        if line.strip():
            return line.strip()


async def _answer(url: str, key: str, body: dict[str, Any]) -> Turn:
    """Stream an answer to standard output.

    Raises ServerUnreachable, and ServerRefused if the server refuses or the stream has an error.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENT_S)
    headers = {"Authorization": f"Bearer {key}"}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    turn = Turn(sent_at=time.monotonic())
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.post(url + _PATH, json=streamed) as response,
        ):
            if response.status != 200:
                message = error_message(await response.read(), response.status)
                raise ServerRefused(message, status=response.status)
            async for line in response.content:
                echo(turn.hear(line, time.monotonic()), nl=False)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, ValueError) as error:
        raise unreachable(url, error) from error
    finally:
        if turn.text:
            echo()
    return turn
