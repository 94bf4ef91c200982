"""Random requests in each dialect, and the usage that their answers report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from gateway.tenant_limits import TokenCounts
from tests.doubles.gateway.served import MODEL
from tests.gateway.usage.ledger.client import Answer, Pace

ALPHABET = "abc \n"
_MANY = 16  # choices of a request with many, whose answers are short


@dataclass(frozen=True)
class Asking:
    """A request. `sharing`: the number of choices of each prompt that share its computation."""

    path: str
    body: dict[str, Any]
    sharing: int = 1

    @property
    def is_stream(self) -> bool:
        return bool(self.body["stream"])

    def encoded(self, key: str) -> bytes:
        body = json.dumps({"model": MODEL, **self.body}).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def some_request(random: Random) -> Asking:
    """Draw a request of any dialect; half of the requests have stop strings, if the dialect allows.

    A block has 16 tokens of one character each. Some prompts are shorter than a block.
    """
    stream = bool(random.randrange(2))
    prompts = [_text(random, random.choice([3, 14, 15, 40, 90])) for _ in range(8)]
    stops = _stops(random)
    n = random.choice([1, 1, 2, 3, 4, 16])
    most = random.choice([1, 5, 40, 200] if n < _MANY else [0, 1, 5])
    turns = [{"role": "user", "content": prompts[0]}]
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    match random.randrange(4):
        case 0:
            more = {"logprobs": True, "top_logprobs": 5} if not random.randrange(3) else {}
            body = {"messages": turns, "max_tokens": most, "n": n, "stop": stops, **usage, **more}
            return Asking("/v1/chat/completions", {**body, "stream": stream}, n)
        case 1:
            most = random.choice([most, most, 0])
            prompt = prompts[: random.choice([2, 2, 8])] if random.randrange(2) else prompts[0]
            body = {"prompt": prompt, "max_tokens": most, "n": n, "stop": stops, **usage}
            if not stream and not random.randrange(4):  # the request does not use the cache
                return Asking("/v1/completions", {**body, "prompt_logprobs": 1, "stream": False})
            return Asking("/v1/completions", {**body, "stream": stream}, n)
        case 2:
            body = {"input": prompts[0], "max_output_tokens": most, "store": False}
            return Asking("/v1/responses", {**body, "stream": stream})
        case _:
            body = {"messages": turns, "max_tokens": most, "stop_sequences": stops}
            return Asking("/v1/messages", {**body, "stream": stream})


def some_pace(random: Random) -> Pace:
    """Draw a client's pace: fast, slow, in small pieces, stopping after some bytes, or leaving."""
    match random.randrange(6):
        case 0:
            return Pace()
        case 1:
            return Pace(at_once=random.choice([7, 300]), one_in=random.choice([1, 3]))
        case 2:
            return Pace(at_once=2000, one_in=30)
        case 3:
            return Pace(reads_at_most=random.choice([0, 500, 3000]), leaves_after=800)
        case 4:
            return Pace(leaves_after=random.randrange(200))
        case _:
            return Pace(at_once=100, one_in=5, leaves_after=random.randrange(400))


def told(asking: Asking, answer: Answer) -> TokenCounts | None:
    """Return the usage in a complete answer; None if the answer broke off or was refused."""
    if not answer.is_whole or answer.status != 200:
        return None
    body = bytes(answer.body)
    said = _last_usage(body) if asking.is_stream else json.loads(body)["usage"]
    if said is None:
        return None
    if asking.path == "/v1/messages":
        return TokenCounts(
            said["input_tokens"] + said["cache_creation_input_tokens"],
            said["cache_read_input_tokens"],
            said["output_tokens"],
        )
    kind = ("input", "output") if asking.path == "/v1/responses" else ("prompt", "completion")
    cached = said[f"{kind[0]}_tokens_details"]["cached_tokens"]
    return TokenCounts(said[f"{kind[0]}_tokens"] - cached, cached, said[f"{kind[1]}_tokens"])


def _text(random: Random, length: int) -> str:
    return "".join(random.choices(ALPHABET, k=length))


def _stops(random: Random) -> list[str]:
    return [] if random.randrange(2) else [_text(random, random.choice([2, 3, 4])) for _ in "ab"]


def _last_usage(stream: bytes) -> dict[str, Any] | None:
    """Return the usage of the last event that has one; None if the stream broke off."""
    events = [
        json.loads(line[5:])
        for line in stream.split(b"\n")
        if line.startswith(b"data:") and not line.endswith(b"[DONE]")
    ]
    if any(_is_error(event) for event in events):
        return None
    told = [one for event in events if (one := _usage_in(event))]
    return told[-1] if told else None


def _is_error(event: dict[str, Any]) -> bool:
    return bool(event.get("error")) or event.get("type") in ("error", "response.failed")


def _usage_in(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the usage in one of Anthropic's events: the prompt's in the first, all of it in the
    last.
    """
    if event.get("type") == "message_start":
        return None
    usage: dict[str, Any] | None = event.get("usage") or event.get("response", {}).get("usage")
    return usage
