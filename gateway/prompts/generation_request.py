"""The two forms of a request: as parsed by its dialect, and as admitted.

    wire format (`dialects/`) -> GenerationRequest -> `admission` -> AdmittedRequest -> `generation`

A dialect makes a GenerationRequest. The code that runs, measures and traces requests reads the
AdmittedRequest. This code needs neither the tokenizer nor the engine's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec

from engine.link.messages import Generate, Grammar, Loads, Priority, SamplingParams
from gateway.diagnosis.comparison import Comparison, Explain
from gateway.diagnosis.seen import SeenPrompt
from gateway.processes.fair_executor import LARGE
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.messages import Message, ToolCall, ToolResult
from gateway.prompts.chats.template_variables import Scalar, size_of_variables
from gateway.prompts.modules.selection import ModulesOption
from gateway.prompts.tokens.splicing import Place
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.tenant_adapters import TenantAdapter
from gateway.turn_formats.structural_tag import StructuralTag
from gateway.turn_formats.turn_format import ToolSpec, TurnParser

# number of token ids that take as long to read as one character takes to tokenise
_IDS_PER_CHARACTER = 16
TOKEN_BYTES = 4  # bytes of a packed token id
# maximum number of prompts without output that one request has in the engine at once
PROMPTS_AT_ONCE = 64
# number of characters that take as long to tokenise as an empty message or part takes to render
_EACH = 64
_VALUE = 8  # number of characters that take as long to tokenise as a JSON value takes to render


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat prompt: messages and tools, to be rendered by the model's template."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Scalar] | None = None
    # The dialect's values for variables that neither the request nor the operator sets.
    implied: Mapping[str, Scalar] = field(default_factory=dict)
    tools: Sequence[Tool] | None = None
    tools_size: int = 0
    later_tools: tuple[ToolSpec, ...] = ()  # tools defined in messages, not in `tools`


Prompt = ChatPrompt | str | TokenIds


def size_of(prompt: Prompt) -> int:
    """Return the work of admitting a prompt, in units of one tokenised character.

    The event loop runs this function. In a large chat the function stops early, and returns a lower
    bound.
    """
    if isinstance(prompt, ChatPrompt):
        size = prompt.tools_size
        sizes = chain(
            _sizes_said(prompt.messages),
            _sizes_in(map(msgspec.structs.astuple, prompt.later_tools)),
        )
        while size <= LARGE and (more := next(sizes, None)) is not None:
            size += more
        return size + size_of_variables(prompt.variables or {})
    return len(prompt) if isinstance(prompt, str) else len(prompt) // _IDS_PER_CHARACTER


def _sizes_said(messages: Iterable[Message]) -> Iterator[int]:
    for message in messages:
        yield _EACH + len(message.name or "")
        for part in message.parts:
            yield _EACH
            match part:
                case ToolCall(name, arguments, call_id):
                    yield from _sizes_in((name, arguments, call_id))
                case ToolResult(text, call_id):
                    yield len(text) + len(call_id)
                case _:
                    yield len(part.text)


def _sizes_in(values: Iterable[object]) -> Iterator[int]:
    for value in values:
        match value:
            case str():
                yield _VALUE + len(value)
            case dict():
                yield _VALUE
                yield from _sizes_in(chain(value, value.values()))
            case list() | tuple():
                yield _VALUE
                yield from _sizes_in(value)
            case _:
                yield _VALUE


TextGrammar = Grammar | StructuralTag


@dataclass(frozen=True, slots=True)
class TextRules:
    """The rules by which generated tokens become shown text."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    hidden_stops: Mapping[int, str] = field(default_factory=dict)
    shows_prompt_ids: bool = False


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer: calls of tools, or a text that may have to match a grammar.

    The form does not change the prompt. The prompt shows all tools, even if they may not be called.
    """

    tools: tuple[ToolSpec, ...] = ()
    least_calls: int = 0
    most_calls: int | None = None
    text: TextGrammar | None = None
    text_param: str | None = None

    @property
    def may_call(self) -> bool:
        """True if there is a tool that may be called."""
        return bool(self.tools) and self.most_calls != 0

    @property
    def text_size(self) -> int:
        """The work of writing `text` as a grammar, in units of one tokenised character."""
        match self.text:
            case None:
                return 0
            case Grammar(_, text):
                return len(text)
            case tag:
                return len(msgspec.json.encode(tag))


@dataclass(frozen=True, slots=True)
class CacheMark:
    """A cache breakpoint, up to which the prompt is retained, in any dialect."""

    seconds: float  # seconds for which the prefix is retained after each use
    chat: ChatPrompt | None = None  # the chat up to the breakpoint; None: the whole prompt


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The content of a request, as the request's dialect has read it."""

    request_id: str
    prompts: tuple[Prompt, ...]
    choices: int
    sampling: SamplingParams
    # whether `max_tokens` is only a default, which admission may lower to the context's room
    max_tokens_may_shrink: bool
    text: TextRules
    salt: str | None = None
    adapter: TenantAdapter | None = None  # None: the model alone
    # requested priority, used if it is lower than the tenant's own priority
    priority: Priority = "interactive"
    loads: Loads = "auto"
    form: AnswerForm = AnswerForm()
    explain: Explain | None = None
    marks: tuple[CacheMark, ...] = ()
    drafts: bool = True  # whether tokens may be drafted; drafts do not change the answer
    prediction: str = ""  # text that the answer is expected to repeat, or ""
    embeds: bool = False
    # Packed token ids whose logits after each prompt are the answer. Without ids the answer has no
    # logits.
    candidates: tuple[bytes, ...] = ()
    modules: ModulesOption | None = None

    @property
    def at_once(self) -> int:
        """The maximum number of choices that run at the same time."""
        choices = len(self.prompts) * self.choices
        return choices if self.has_output else min(choices, PROMPTS_AT_ONCE)

    @property
    def has_output(self) -> bool:
        """True if tokens are generated. False if the prompt is only computed into the cache."""
        return self.sampling.max_tokens > 0

    @property
    def size(self) -> int:
        """The work of admission in units of one tokenised character.

        The work includes the chats up to breakpoints.
        """
        marked = sum(size_of(mark.chat) for mark in self.marks if mark.chat is not None)
        return sum(map(size_of, self.prompts)) + marked + self.form.text_size + len(self.prediction)


@dataclass(frozen=True, slots=True)
class Origin:
    """The chat of an answer, and the answer's place in the chat.

    A later request finds the answer's tokens by these values. `opened` are the prompt's last
    tokens, if they open the answer's reasoning.
    """

    tenant_id: str
    chain: Any  # hash of all earlier messages
    begin: Place  # place in the rendered chat at which the turn begins
    before: bytes
    opened: TokenIds
    # If thoughts are kept: the prompt's tokens from the turn `parent` up to `opened`.
    since: TokenIds | None = None
    parent: bytes | None = None


class ModulesUsed(msgspec.Struct, frozen=True):
    """The prompt modules that a prompt used, as the answer reports them."""

    schema: str
    used: tuple[str, ...]
    # names of modules of one scaffold, which attend to each other
    together: tuple[tuple[str, ...], ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """The admitted request. Choice i is `generates[i]`. The choices of a prompt are adjacent."""

    generates: tuple[Generate, ...]
    choices: int
    # number of prompt tokens; choices that share a prompt (`sharing`) count once, as in `usage`
    prompt_tokens: int
    text: TextRules
    # makes a parser of an answer; None: answers are plain text
    parser: Callable[[], TurnParser] | None = None
    origin: Origin | None = None
    grammar_param: str | None = None  # the request's field that the grammar comes from
    seen: SeenPrompt | None = None  # the prompt to remember; None for several prompts
    comparison: Comparison | None = None
    explains: bool = False
    max_tokens_may_shrink: bool = False
    at_once: int | None = None  # maximum number of choices that run at the same time; None: all
    modules: ModulesUsed | None = None

    @property
    def sharing(self) -> int:
        """The number of choices that share one computed prompt, or 1 without the cache."""
        return self.choices if self.generates[0].use_cache else 1

    @property
    def prediction_tokens(self) -> int:
        """The tokens of the prediction, counted once for each choice that may reject them."""
        return sum(len(one.prediction) for one in self.generates) // TOKEN_BYTES

    @property
    def most_computed(self) -> int:
        """The tokens of all prompts if each choice computes its own, and modules' unread tokens."""
        modules = (module for one in self.generates[:: self.choices] for module in one.modules)
        unread = sum(module.unread_tokens for module in modules)
        return self.prompt_tokens * self.sharing + unread

    def shortened(self, most: int) -> AdmittedRequest:
        """Return a copy of the request with answers of at most `most` tokens."""
        return replace(self, generates=tuple(_shortened(one, most) for one in self.generates))


def _shortened(generate: Generate, most: int) -> Generate:
    sampling = generate.sampling
    if sampling.max_tokens <= most:
        return generate
    least = min(sampling.min_tokens, most)
    sampling = msgspec.structs.replace(sampling, max_tokens=most, min_tokens=least)
    return msgspec.structs.replace(generate, sampling=sampling)
