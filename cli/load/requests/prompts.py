"""Bodies of requests with prompts of given lengths, from a seed: random token ids, or words."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from cli.errors import BadSetting
from cli.json_text import NotJson, decode_json
from cli.load.options import EndpointName, LoadFlags
from cli.load.phases import SPECIAL_IDS
from cli.load.requests.dataset import RequestSize
from cli.load.sender import Body, stream_body

WORDS = (
    "all", "and", "any", "but", "can", "day", "for", "how", "new", "not", "now", "old", "see",
    "two",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """A section of a prompt. Equal seeds and lengths give equal sections."""

    seed: str
    tokens: int


def flag_sizes(load: LoadFlags) -> list[RequestSize]:
    """Return a size for each request, all equal to the sizes that the flags give."""
    return [RequestSize(load.prompt_tokens, load.output_tokens)] * load.requests


def draw_bodies(
    load: LoadFlags, model: str, seed: int | str, sizes: Sequence[RequestSize] | None = None
) -> list[Body]:
    """Draw a body for each request. Equal arguments give equal bodies.

    Without `sizes`, the flags give the sizes, and all prompts begin with the same --shared-tokens.
    Raises BadSetting.
    """
    shared = _shared(load) if sizes is None else 0
    extra = {} if load.extra_body is None else _object(load.extra_body)
    return [
        stream_body(model, size.output)
        | _prompt(load.endpoint, _pieces(seed, number, size, shared), load.vocab)
        | extra
        for number, size in enumerate(flag_sizes(load) if sizes is None else sizes)
    ]


def _shared(load: LoadFlags) -> int:
    if load.shared_tokens is None:
        return load.prompt_tokens // 2
    if load.shared_tokens > load.prompt_tokens:
        raise BadSetting(
            "--shared-tokens",
            f"{load.shared_tokens} is more than --prompt-tokens {load.prompt_tokens}",
        )
    return load.shared_tokens


def _object(text: str) -> Body:
    try:
        return decode_json(text, Body)
    except NotJson as error:
        raise BadSetting("--extra-body", f"is no JSON object: {error}") from None


def _pieces(seed: int | str, number: int, size: RequestSize, shared: int) -> list[Piece]:
    if not size.blocks:
        return [Piece(f"{seed} shared", shared), Piece(f"{seed} {number}", size.prompt - shared)]
    left, pieces = size.prompt, list[Piece]()
    for block in size.blocks:
        pieces.append(Piece(f"{seed} block {block}", min(left, size.block_size)))
        left -= size.block_size
    return pieces


def _prompt(endpoint: EndpointName, pieces: Sequence[Piece], vocab: int) -> Body:
    if endpoint == "completions":
        return {"prompt": [token for piece in pieces for token in _ids(piece, vocab)]}
    first, *others = pieces
    system = [{"role": "system", "content": _words(first)}] if first.tokens and others else []
    own = " ".join(map(_words, others if others else [first]))
    return {"messages": [*system, {"role": "user", "content": own or WORDS[0]}]}


def _ids(piece: Piece, vocab: int) -> list[int]:
    rng = random.Random(piece.seed)
    return [rng.randrange(SPECIAL_IDS, vocab) for _ in range(piece.tokens)]


def _words(piece: Piece) -> str:
    rng = random.Random(piece.seed)
    return " ".join(rng.choice(WORDS) for _ in range(piece.tokens))
