"""The route `/v1/decisions`: questions about one input.

Each question becomes a prompt of the input and the question.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.link.messages import pack_token_ids
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.openai.prefill.candidates import probabilities
from gateway.dialects.openai.prefill.questions import SYSTEM, answer, asked, input_of, labels_for
from gateway.dialects.openai.prefill.rendering import WholeReply
from gateway.dialects.openai.prefill.replies import Decision, DecisionInputDetails, DecisionUsage
from gateway.dialects.openai.prefill.schema import DecisionRequest, Question
from gateway.dialects.prefill_request import (
    WITHOUT_THOUGHTS,
    PrefillRequest,
    bytes_of,
    check_size,
    prefill_request,
)
from gateway.prompts.chats.chat_json import refuse_unsupported
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.requests.request_usage import Usage


def request_of_decisions(
    wire: DecisionRequest, request_id: str, tokenizer: Tokenizer
) -> PrefillRequest:
    """Convert `wire` into a request with a prompt for each question.

    Raises BadRequest for a wrong field.
    """
    refuse_unsupported(wire)
    given, labels = input_of(wire.input), labels_for(tokenizer, wire.questions)
    questions = [asked(one, tokenizer, labels) for one in wire.questions]
    texts = [one.text for one in questions]
    size = check_size(bytes_of(texts, given), "input")  # checked before the large prompts are made
    return prefill_request(
        request_id,
        tuple(_prompt(given + text) for text in texts),
        wire.cache_salt,
        num_bytes=size,
        candidates=tuple(pack_token_ids(one.candidates) for one in questions),
    )


def _prompt(text: str) -> ChatPrompt:
    messages = (Message("system", (Text(SYSTEM),)), Message("user", (Text(text),)))
    return ChatPrompt(messages, variables=WITHOUT_THOUGHTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReply(WholeReply):
    """A renderer of decisions."""

    questions: Sequence[Question]

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Decision:
        """Write the answers in the order of their questions."""
        found = (probabilities(choice.end.candidates) for choice in choices)
        details = DecisionInputDetails(usage.cached_tokens, sum(usage.written))
        return Decision(
            answers=[answer(*pair) for pair in zip(self.questions, found, strict=True)],
            model=self.model,
            usage=DecisionUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=details,
                total_tokens=usage.prompt_tokens,
            ),
        )
