"""The setup of a gateway benchmark, and the bytes of the chat request that it sends."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.config import GatewayConfig
from gateway.startup.first_start import ensure_first_start
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import MODEL, config_of


@contextmanager
def first_started(port: int, **settings: Any) -> Iterator[tuple[GatewayConfig, str]]:
    """Make a directory with tokenizer and keys. Yield a gateway's config and the demo key."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        keys = asyncio.run(ensure_first_start(directory / "data", clock=time.time))
        model = write_tiny_model(directory / "model")
        settings = {"engines": (str(directory / "engine.sock"),), **settings}
        config = config_of(model, directory / "data", port=port, **settings)
        yield config, keys.demo_key or ""


def chat_request(key: str, **chat: object) -> bytes:
    """Encode a streamed chat request. `chat` is its JSON body, without the model."""
    body = json.dumps({"model": MODEL, "stream": True, **chat})
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()
