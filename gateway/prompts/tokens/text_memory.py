"""The remembered token ids of pieces of text in a tenant's recent prompts.

Prompts grow at their end, and begin with the same system text and tools. A cut does not depend on
the text after it (`long_text.py`). The pieces of one prompt are therefore found again in the next
prompt. Only the token ids and digests of the texts are stored.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from gateway.config import Bounds
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.tenant_memory import TenantMemory

# Bytes that never occur in UTF-8. Hashed before control tokens and texts, they tell these apart.
_CONTROL, _TEXT = b"\xfd", b"\xfe"


@dataclass(frozen=True, slots=True)
class KnownText:
    """The remembered tokens of a piece of text."""

    token_ids: TokenIds

    @property
    def size(self) -> int:
        """The entry's approximate size in bytes."""
        return self.token_ids.nbytes


class TextMemory(TenantMemory[KnownText]):
    """The token ids, by tenant, and by the digest of namespace and text. Thread-safe."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        super().__init__(
            bounds.max_tenant_text_bytes, bounds.max_all_text_bytes, bounds.turn_life_s, clock
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a text. No other tenant or namespace finds its tokens."""

    tenant_id: str
    namespace: bytes


def key_of(namespace: bytes, text: str | Rendered, *, special: bool) -> bytes:
    """Hash a text for look-up. With `special`, its ids begin with the model's special tokens."""
    hashed = hashlib.blake2b(namespace, digest_size=32, person=b"special" if special else b"")
    pieces = (text,) if isinstance(text, str) else text.pieces
    for place, piece in enumerate(pieces):
        hashed.update((_CONTROL if place % 2 else _TEXT) + piece.encode())
    return hashed.digest()
