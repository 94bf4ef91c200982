"""The welcome message that an engine with a fake runner sends to clients."""

from __future__ import annotations

from uuid import uuid4

from engine.link.messages import Welcome


def welcome_of(
    vocab_size: int,
    context_len: int,
    eos_token_ids: tuple[int, ...],
    *,
    block_size: int,
    num_blocks: int,
    device: str = "cpu",
    dtype: str = "float32",
    has_modules: bool = False,
) -> Welcome:
    """Return the welcome of an engine with `num_blocks` blocks, even if the context needs more."""
    return Welcome(
        engine_id=uuid4().hex,
        fingerprint=b"f" * 32,
        vocab_size=vocab_size,
        block_size=block_size,
        max_model_len=min(context_len, num_blocks * block_size),
        eos_token_ids=eos_token_ids,
        device=device,
        dtype=dtype,
        has_modules=has_modules,
    )
