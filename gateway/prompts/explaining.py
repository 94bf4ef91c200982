"""Between admission and `gateway/diagnosis`: what is remembered of a prompt, and its comparison.

Knows: requests and callers. Does not know: how prompts are compared.
"""

from __future__ import annotations

from functools import partial

from engine.link.messages import Mark, Welcome
from gateway.auth.caller import Caller
from gateway.diagnosis.comparison import Comparison, compare
from gateway.diagnosis.seen import SeenPrompt, SeenPrompts, digest_of_salt
from gateway.prompts.generation_request import (
    AdmittedRequest,
    ChatPrompt,
    GenerationRequest,
    Prompt,
)
from gateway.prompts.tokenizer import Tokenizer


class Explaining:
    """Compares a tenant's prompts with its earlier ones. For any thread."""

    def __init__(self, memory: SeenPrompts | None, tokenizer: Tokenizer) -> None:
        """Without a `memory` nothing is remembered."""
        self._memory = memory
        self._decode = partial(tokenizer.decode, skip_special_tokens=False)

    def compared(
        self, wanted: GenerationRequest, seen: SeenPrompt, caller: Caller, block_size: int
    ) -> Comparison | None:
        """`seen` beside an earlier prompt; None unless the request asks for that."""
        if wanted.explain is None:
            return None
        if self._memory is None:
            return Comparison(seen, block_size, is_known=False)
        return compare(
            self._memory, caller.tenant_id, seen, wanted.explain, block_size, self._decode
        )

    def remember(self, admitted: AdmittedRequest) -> None:
        """Keep the prompt, which the engine has computed by now."""
        if self._memory is not None and admitted.seen is not None:
            self._memory.remember(admitted.generates[0].flow, admitted.seen)


def as_seen(
    wanted: GenerationRequest,
    prompt: Prompt,
    packed: bytes,
    caller: Caller,
    welcome: Welcome,
    marks: tuple[Mark, ...],
) -> SeenPrompt:
    """What is remembered of `prompt`, whose tokens are `packed`."""
    tools, messages = (
        (prompt.tools or (), prompt.messages) if isinstance(prompt, ChatPrompt) else ((), ())
    )
    return SeenPrompt(
        wanted.request_id,
        packed,
        tuple(tool["function"]["name"] for tool in tools),
        bool(messages) and messages[0].role == "system",
        welcome.fingerprint,
        caller.group_id,
        digest_of_salt(wanted.salt),
        marks,
    )
