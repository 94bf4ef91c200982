"""Token counts of texts, without special tokens, from a tokenizer file or from the server."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cli.errors import BadSetting
from cli.load.requests.dataset import CountTokens
from cli.load.sender import LoadTarget
from cli.operating.admin_client import AdminClient
from gateway.prompts.tokens.tokenizer import ModelFileBroken, Tokenizer


def token_counter(server: LoadTarget, directory: Path | None) -> CountTokens:
    """Return a counter that uses a tokenizer.json or the server's /tokenize. Raises BadSetting."""
    if directory is None:
        return lambda texts: asyncio.run(_counted_by(server, texts))
    try:
        tokenizer = Tokenizer.load(directory)
    except ModelFileBroken as error:
        raise BadSetting("--tokenizer", str(error)) from error
    return lambda texts: [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]


async def _counted_by(server: LoadTarget, texts: Sequence[str]) -> list[int]:
    """Count one text per request, as rate limits may be low. Raises `AdminClient.call`'s errors."""
    async with AdminClient(server.url, server.key) as client:
        common = {"model": server.model, "add_special_tokens": False}
        bodies = [{**common, "prompt": text} for text in texts]
        return [(await client.call("POST", "/tokenize", body))["count"] for body in bodies]
