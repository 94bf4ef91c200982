"""Admitted requests with prompts of given lengths."""

from __future__ import annotations

from engine.link.messages import Generate, SamplingParams
from gateway.prompts.generation_request import AdmittedRequest, TextRules


def admitted(*prompts: int, choices: int = 1, use_cache: bool = True) -> AdmittedRequest:
    """Make a request with `choices` choices for each prompt; `prompts` are lengths in tokens."""
    generates = tuple(
        Generate(
            request_id=f"{prompt}-{choice}",
            token_ids=bytes(4 * length),
            namespaces=(),
            block_keys=b"",
            flow="tn_1",
            sampling=SamplingParams(max_tokens=8),
            use_cache=use_cache,
        )
        for prompt, length in enumerate(prompts)
        for choice in range(choices)
    )
    return AdmittedRequest(generates, choices, sum(prompts), TextRules())
