"""The route `/v1/rerank`: a prompt for each document judges the document's relevance.

The prompt is Qwen3-Reranker's, as published. A system message asks for "yes" or "no". The
instruction, the query and the document follow. The score is the probability of "yes", relative to
"no". The document comes last, so all prompts share a prefix, which is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from engine.link.messages import pack_token_ids
from gateway.config import Bounds
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.openai.prefill.candidates import probabilities, tokens_of
from gateway.dialects.openai.prefill.rendering import WholeReply, prompt_usage
from gateway.dialects.openai.prefill.replies import Ranked, RankedDocument, Reranked, RerankMeta
from gateway.dialects.openai.prefill.schema import RerankRequest
from gateway.dialects.openai.requests.sampling import at_most
from gateway.dialects.prefill_request import (
    WITHOUT_THOUGHTS,
    PrefillRequest,
    bytes_of,
    check_size,
    prefill_request,
)
from gateway.processes.fair_executor import Steps
from gateway.prompts.chats.chat_json import refuse_unsupported
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import ChatPrompt
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.requests.request_usage import Usage

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
ANSWERS = ("yes", "no")
_CHARACTERS_PER_TOKEN = 8  # more than most texts have


def texts_of(wire: RerankRequest) -> list[str]:
    """Return the documents' texts."""
    return [one if isinstance(one, str) else one.text for one in wire.documents]


def request_of_rerank(
    wire: RerankRequest, request_id: str, bounds: Bounds, tokenizer: Tokenizer, max_model_len: int
) -> Steps[PrefillRequest]:
    """Convert `wire` into a request; raise BadRequest for a wrong field.

    Documents that may be cut are tokenised, each in a step of its own.
    """
    refuse_unsupported(wire)
    at_most("documents", len(wire.documents), bounds.max_inputs)
    asked = INSTRUCTION if wire.instruction is None else wire.instruction
    texts, candidates = texts_of(wire), pack_token_ids(tokens_of(tokenizer, ANSWERS))
    # The size is checked before the prompts are made, since each prompt repeats the shared text.
    size = check_size(bytes_of(texts, asked + wire.query), "documents")
    read = texts
    if wire.max_tokens_per_doc is not None:
        # a longer document does not fit into the context and is refused
        most = min(wire.max_tokens_per_doc, max_model_len)
        yield sum(min(len(text), _CHARACTERS_PER_TOKEN * most) for text in texts)
        read = []
        for text in texts:
            read.append(_cut(text, most, tokenizer))
            yield
    prompts = tuple(_prompt(asked, wire.query, text) for text in read)
    return prefill_request(
        request_id,
        prompts,
        wire.cache_salt,
        num_bytes=size + (bytes_of(texts) if wire.return_documents else 0),
        candidates=(candidates,) * len(prompts),
    )


def _cut(text: str, most: int, tokenizer: Tokenizer) -> str:
    """Return the beginning of `text` that has at most `most` tokens.

    Only the needed part of a long text is tokenised, because only the tokens of that part are
    charged.
    """
    if len(text.encode()) <= most:  # a token has at least one byte
        return text
    end = _CHARACTERS_PER_TOKEN * most
    while len(ids := tokenizer.encode(Rendered((text[:end],)), add_special_tokens=False)) <= most:
        if end >= len(text):
            return text
        end *= 2
    beginning = tokenizer.decode(ids[:most].tolist(), skip_special_tokens=False)
    return beginning.rstrip("\N{REPLACEMENT CHARACTER}")  # drops a character that the cut has split


def _prompt(instruction: str, query: str, document: str) -> ChatPrompt:
    asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    messages = (Message("system", (Text(SYSTEM),)), Message("user", (Text(asked),)))
    return ChatPrompt(messages, variables=WITHOUT_THOUGHTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankReply(WholeReply):
    """A renderer of ranked documents."""

    id: str
    top_n: int | None  # maximum number of documents in the answer; None: all
    texts: Sequence[str]
    is_voyages: bool = False  # whether the answer has the field that Voyage's clients read

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Reranked:
        """Write the documents, the highest score first. Equal scores keep the request's order."""
        scores = [float(probabilities(choice.end.candidates)[0]) for choice in choices]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[: self.top_n]
        ranked = [self._ranked(place, scores[place]) for place in order]
        return Reranked(
            id=self.id,
            model=self.model,
            results=ranked,
            data=ranked if self.is_voyages else UNSET,
            usage=prompt_usage(usage),
            meta=RerankMeta({"input_tokens": usage.prompt_tokens, "output_tokens": 0}),
        )

    def _ranked(self, place: int, score: float) -> Ranked:
        document = RankedDocument(self.texts[place]) if self.texts else UNSET
        return Ranked(index=place, relevance_score=score, document=document)
