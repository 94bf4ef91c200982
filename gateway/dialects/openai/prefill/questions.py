"""Questions as texts after the input, and their answers as single tokens.

<Input> ... </Input>     the same for all questions and computed once
    the question             its instructions, and a label before each choice or level
    the answer               "yes" or "no", or a label: one token, whose probability is read

A label is a letter, or two letters if there are many choices. The tokenizer must encode a label as
one token; other labels are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from string import ascii_uppercase

import numpy as np
import numpy.typing as npt

from gateway.dialects.openai.prefill.candidates import single_token, tokens_of
from gateway.dialects.openai.prefill.replies import (
    ChoiceAnswer,
    ChoiceProbability,
    LevelProbability,
    PredicateAnswer,
    ScoreAnswer,
)
from gateway.dialects.openai.prefill.schema import (
    Choose,
    DecisionItem,
    DecisionPart,
    DecisionText,
    Level,
    Predicate,
    Question,
    Rating,
)
from gateway.errors import BadRequest
from gateway.prompts.tokens.tokenizer import Tokenizer

Probabilities = npt.NDArray[np.float64]
SYSTEM = (
    "Answer the question about the input with one of the answers that it allows. Say only that."
)
ANSWERS = ("yes", "no")
TRUE = 'Is this true of the input? Answer "yes" or "no".'
PICK = "Answer with the letter of one of these:"


@dataclass(frozen=True, slots=True)
class PosedQuestion:
    """A question as text, and the tokens that may answer it."""

    text: str
    candidates: list[int]


def asked(
    question: Question, tokenizer: Tokenizer, labels: Sequence[tuple[str, int]]
) -> PosedQuestion:
    """Write a question. `labels` has a label and its token for each choice or level."""
    told = text_of(question.instructions)
    if isinstance(question, Predicate):
        return PosedQuestion(f"{told}\n{TRUE}", tokens_of(tokenizer, ANSWERS))
    lines = [f"{label}. {one}" for (label, _), one in zip(labels, _options(question), strict=False)]
    text = "\n".join([told, PICK, *lines])
    return PosedQuestion(text, [token_id for _, token_id in labels[: len(lines)]])


def labels_for(tokenizer: Tokenizer, questions: Sequence[Question]) -> list[tuple[str, int]]:
    """Find a one-token label for each choice of the longest question.

    Raises BadRequest if too few labels are single tokens.
    """
    most = max(len(_options(one)) for one in questions)
    found = [*islice(_labels(tokenizer), most)]
    if len(found) < most:
        raise BadRequest(
            f"the model's tokenizer has labels for {len(found)} choices, a question has {most}",
            code="model_not_supported",
            param="questions",
        )
    return found


def _labels(tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
    known = set[int]()
    for letters in (*ascii_uppercase, *map("".join, product(ascii_uppercase, repeat=2))):
        token_id = single_token(tokenizer, letters)
        if token_id is not None and token_id not in known:
            known.add(token_id)
            yield letters, token_id


def _options(question: Question) -> list[str]:
    match question:
        case Choose(choices=choices):
            return [_described(_spelled(one.value), one.description) for one in choices]
        case Rating(levels=levels):
            return [_described(one.label, one.description) for one in levels]
    return []


def _described(name: str, description: str | None) -> str:
    return name if description is None else f"{name}: {description}"


def _spelled(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def answer(
    question: Question, found: Probabilities
) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    """Write the answer to a question. `found` has the candidates' probabilities."""
    each, name = found.tolist(), question.name
    if isinstance(question, Predicate):
        return PredicateAnswer(name=name, probability=each[0])
    best = int(found.argmax())
    if isinstance(question, Choose):
        values = [one.value for one in question.choices]
        probabilities = [*map(ChoiceProbability, values, each)]
        return ChoiceAnswer(
            name=name, choice=values[best], confidence=each[best], probabilities=probabilities
        )
    return ScoreAnswer(
        name=name,
        score=float(found @ np.arange(len(each))),
        confidence=each[best],
        probabilities=_levels(question.levels, each),
    )


def _levels(levels: Sequence[Level], each: Sequence[float]) -> list[LevelProbability]:
    return [
        LevelProbability(place, level.label, probability)
        for place, (level, probability) in enumerate(zip(levels, each, strict=True))
    ]


def input_of(given: str | Sequence[DecisionItem]) -> str:
    """Write the request's input as one text; raise BadRequest for an item without text."""
    told = given if isinstance(given, str) else "\n\n".join(map(_item, given))
    return f"<Input>\n{told}\n</Input>\n\n"


def _item(item: DecisionItem) -> str:
    who: str | None = item.role
    said = item.content
    if item.type in ("function_call", "custom_tool_call"):
        who, said = f"call of {item.name}", item.arguments if item.input is None else item.input
    elif item.type != "message":
        who, said = "result", item.output
    if who is None or said is None:
        raise BadRequest(f"an item of type `{item.type}` lacks its content", param="input")
    return f"{who}: {text_of(said)}"


def text_of(said: DecisionText) -> str:
    """Join the parts of a text with line ends; raise BadRequest for an empty part."""
    return said if isinstance(said, str) else "\n".join(map(_part, said))


def _part(part: DecisionPart) -> str:
    data = bytes(part.data).decode()
    text = data if part.type == "input_json" else part.refusal or part.text
    if not text:
        raise BadRequest(f"a part of type `{part.type}` has no content", param="input")
    return text
