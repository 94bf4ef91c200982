"""The share of exactly right greedy answers about handbooks that were not in training.

A greedy answer is right if each expected token is the likeliest after the expected tokens before
it. So one pass over prompt and answer decides, without generating. A tool call is judged in the
same way: the expected tokens are its name and arguments as JSON. Weights are bfloat16 as shipped,
and arithmetic is float32.
"""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM

from handbook.training.checkpoint import SHIPPED, load_checkpoint
from handbook.training.facts import Question
from handbook.training.hermes import written
from handbook.training.rows import TOKENS_PER_FACT, frame
from handbook.training.text import make_handbook, make_messages, make_questions
from handbook.training.tokenizer import load_tokenizer
from handbook.training.tool_chats import make_tool_chat

BUCKET = 500
TOOLS_AS_FACTS = 9
"""A chat's tools have about as many tokens as this number of facts."""
MISTAKES_SHOWN = 20


@dataclass(frozen=True)
class EvaluationCase:
    """A chat of token ids. Its last `answer` ids are the expected answer and its end.

    `handbook_tokens` counts the system message with the tools.
    """

    ids: tuple[int, ...]
    answer: int
    handbook_tokens: int
    question: Question


@dataclass(frozen=True)
class EvaluationOutcome:
    """The model's answer to a case. Each token of `said` is the likeliest after right tokens."""

    case: EvaluationCase
    right: bool
    said: str


def draw_cases(
    tokenizer: Tokenizer, count: int, tokens: tuple[int, int], turns: int = 1, seed: int = 0
) -> list[EvaluationCase]:
    """Draw `count` held-out handbooks with a last turn to answer. `tokens` is a range."""
    rng = random.Random(f"cases {seed}")
    cases: list[EvaluationCase] = []
    number = seed * 1_000_000
    while len(cases) < count:
        number += 1
        case = _draw_case(tokenizer, number, rng.uniform(*tokens) / TOKENS_PER_FACT, turns)
        if tokens[0] <= case.handbook_tokens <= tokens[1]:
            cases.append(case)
    return cases


def draw_tool_cases(
    tokenizer: Tokenizer, count: int, tokens: tuple[int, int], turns: int = 1, seed: int = 0
) -> list[EvaluationCase]:
    """Draw `count` held-out chats with tools.

    Handbook and tools take `tokens` tokens (a range). The last turn is judged. This turn is a call,
    the answer after a result, or an answer without a call, as the question's kind says.
    """
    rng = random.Random(f"tool cases {seed}")
    cases: list[EvaluationCase] = []
    number = seed * 1_000_000
    while len(cases) < count:
        number += 1
        facts = max(0.0, rng.uniform(*tokens) / TOKENS_PER_FACT - TOOLS_AS_FACTS)
        case = _draw_tool_case(tokenizer, number, round(facts), turns, rng.random() < 0.5)
        if tokens[0] <= case.handbook_tokens <= tokens[1]:
            cases.append(case)
    return cases


def _draw_tool_case(
    tokenizer: Tokenizer, seed: int, facts: int, turns: int, at_call: bool
) -> EvaluationCase:
    chat = make_tool_chat(seed, facts, turns)
    turn = chat.turns[-1]
    messages, kind = chat.messages, f"tools: {turn.label}, answer"
    if len(turn.messages) == 2:
        kind = f"tools: {turn.label}, no call"
    elif at_call:
        messages, kind = messages[:-2], f"tools: {turn.sort}, call"
    roles, texts = zip(*written(messages, chat.schemas), strict=True)
    segments = [tokenizer.encode(text).ids for text in texts]
    ids, _ = frame(list(roles), segments, tokenizer.get_vocab())
    question = dataclasses.replace(turn.question, answer=texts[-1], kind=kind)
    return EvaluationCase(tuple(ids), len(segments[-1]) + 1, len(segments[0]), question)


def _draw_case(tokenizer: Tokenizer, seed: int, facts: float, turns: int) -> EvaluationCase:
    handbook = make_handbook(seed, max(1, round(facts)))
    questions = make_questions(handbook, seed, turns)
    messages = make_messages(handbook, questions)
    messages.append({"role": "assistant", "content": questions[-1].answer})
    segments = [tokenizer.encode(message["content"]).ids for message in messages]
    ids, _ = frame([message["role"] for message in messages], segments, tokenizer.get_vocab())
    return EvaluationCase(tuple(ids), len(segments[-1]) + 1, len(segments[0]), questions[-1])


@torch.inference_mode()
def answer_cases(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    cases: Sequence[EvaluationCase],
    batch_tokens: int = 16384,
) -> list[EvaluationOutcome]:
    """Answer the cases in batches of about `batch_tokens`, on the model's own device."""
    outcomes: list[EvaluationOutcome] = []
    batch: list[EvaluationCase] = []
    for case in sorted(cases, key=lambda case: len(case.ids)):
        if batch and len(case.ids) * (len(batch) + 1) > batch_tokens:
            outcomes += _answer_batch(model, tokenizer, batch)
            batch = []
        batch.append(case)
    return outcomes + _answer_batch(model, tokenizer, batch)


def _answer_batch(
    model: LlamaForCausalLM, tokenizer: Tokenizer, batch: list[EvaluationCase]
) -> list[EvaluationOutcome]:
    # Padding is to the right of every counted position, so causal attention never reads it.
    rows = pad_sequence([torch.tensor(case.ids) for case in batch], batch_first=True)
    likeliest = model(rows.to(next(model.parameters()).device)).logits.argmax(-1).cpu()
    return [_judge(case, likeliest[row].tolist(), tokenizer) for row, case in enumerate(batch)]


def _judge(case: EvaluationCase, likeliest: list[int], tokenizer: Tokenizer) -> EvaluationOutcome:
    end = len(case.ids)
    said = likeliest[end - case.answer - 1 : end - 1]
    return EvaluationOutcome(
        case, tuple(said) == case.ids[end - case.answer :], tokenizer.decode(said)
    )


def accuracy(outcomes: Sequence[EvaluationOutcome]) -> float:
    """Return the share of right outcomes, in [0, 1]."""
    return sum(outcome.right for outcome in outcomes) / len(outcomes)


def by_kind(outcomes: Iterable[EvaluationOutcome]) -> dict[str, list[EvaluationOutcome]]:
    """Group the outcomes by the kind of question."""
    return _tally(outcomes, lambda outcome: outcome.case.question.kind)


def _tally(
    outcomes: Iterable[EvaluationOutcome], label: Callable[[EvaluationOutcome], str]
) -> dict[str, list[EvaluationOutcome]]:
    groups: defaultdict[str, list[EvaluationOutcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[label(outcome)].append(outcome)
    return dict(sorted(groups.items()))


def report(outcomes: Sequence[EvaluationOutcome], console: Console) -> None:
    """Print some mistakes, and the accuracy: over all, by handbook length, by question kind."""
    table = Table("", "questions", "right", "share")
    groups = {
        "all": list(outcomes),
        **_tally(outcomes, lambda o: f"{o.case.handbook_tokens // BUCKET * BUCKET:5d}+ tokens"),
        **by_kind(outcomes),
    }
    for label, group in groups.items():
        right = sum(outcome.right for outcome in group)
        table.add_row(label, str(len(group)), str(right), f"{right / len(group):.2%}")
    console.print(table)
    for outcome in [o for o in outcomes if not o.right][:MISTAKES_SHOWN]:
        question = outcome.case.question
        console.print(f"{question.text}  expected {question.answer!r}, got {outcome.said!r}")


def main(
    model: Annotated[Path, typer.Option(help="Directory of the model to judge.")] = SHIPPED,
    handbooks: Annotated[
        int, typer.Option(help="How many held-out handbooks to ask about.")
    ] = 1000,
    least: Annotated[int, typer.Option(help="Shortest handbook, in tokens.")] = 500,
    most: Annotated[int, typer.Option(help="Longest handbook, in tokens.")] = 2000,
    turns: Annotated[int, typer.Option(help="Turns of dialogue; the last answer is judged.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed asks about other handbooks.")] = 0,
    tools: Annotated[bool, typer.Option(help="Offer tools, and judge calls as well.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Ask the model about generated handbooks and print the share of exactly right answers."""
    tokenizer = load_tokenizer(model)
    draw = draw_tool_cases if tools else draw_cases
    cases = draw(tokenizer, handbooks, (least, most), turns, seed)
    outcomes = answer_cases(load_checkpoint(model).to(device), tokenizer, cases)
    report(outcomes, Console(highlight=False))


if __name__ == "__main__":
    typer.run(main)
