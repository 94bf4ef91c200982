from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer
from transformers.modeling_outputs import CausalLMOutput

from handbook.training.evaluate import (
    EvaluationCase,
    EvaluationOutcome,
    accuracy,
    answer_cases,
    by_kind,
    draw_cases,
    draw_tool_cases,
    report,
)
from handbook.training.facts import Question
from tests.handbook.shapes import TINY


class Oracle(torch.nn.Module):
    """A model that predicts every token correctly, except the token `blind`."""

    def __init__(self, blind: int) -> None:
        super().__init__()
        self._blind = blind
        self.place = torch.nn.Parameter(torch.empty(0))

    def forward(self, ids: torch.Tensor) -> CausalLMOutput:
        following = torch.nn.functional.pad(ids[:, 1:], (0, 1))
        following = torch.where(following == self._blind, following + 1, following)
        logits = torch.nn.functional.one_hot(following, TINY.vocab_size).float()
        return CausalLMOutput(logits=logits)


def test_cases_have_handbooks_of_the_asked_length(shipped_tokenizer: Tokenizer) -> None:
    cases = draw_cases(shipped_tokenizer, 20, (100, 300))
    assert len(cases) == 20
    assert all(100 <= case.handbook_tokens <= 300 for case in cases)
    assert cases == draw_cases(shipped_tokenizer, 20, (100, 300))
    assert cases != draw_cases(shipped_tokenizer, 20, (100, 300), seed=1)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_case_ends_with_its_answer(shipped_tokenizer: Tokenizer, turns: int) -> None:
    for case in draw_cases(shipped_tokenizer, 5, (50, 200), turns):
        ending = shipped_tokenizer.decode(case.ids[-case.answer :], skip_special_tokens=False)
        assert ending == case.question.answer + "<|end|>"
        whole = shipped_tokenizer.decode(case.ids, skip_special_tokens=False)
        assert whole.count("<|user|>") == turns


def test_a_perfect_model_scores_100_percent(shipped_tokenizer: Tokenizer) -> None:
    cases = draw_cases(shipped_tokenizer, 12, (30, 200))
    outcomes = answer_cases(Oracle(blind=2000), shipped_tokenizer, cases, batch_tokens=600)
    assert accuracy(outcomes) == 1.0
    assert len(outcomes) == 12
    assert all(outcome.said == outcome.case.question.answer for outcome in outcomes)


def test_one_wrong_token_in_the_answer_is_wrong(shipped_tokenizer: Tokenizer) -> None:
    cases = draw_cases(shipped_tokenizer, 60, (30, 200))
    seven = shipped_tokenizer.encode("7").ids[0]
    outcomes = answer_cases(Oracle(blind=seven), shipped_tokenizer, cases)
    assert all(outcome.right != ("7" in outcome.case.question.answer) for outcome in outcomes)
    assert 0 < accuracy(outcomes) < 1


def test_a_missing_end_is_wrong(shipped_tokenizer: Tokenizer) -> None:
    end = shipped_tokenizer.get_vocab()["<|end|>"]
    cases = draw_cases(shipped_tokenizer, 3, (30, 200))
    assert accuracy(answer_cases(Oracle(blind=end), shipped_tokenizer, cases)) == 0.0


def test_report_counts_by_length_and_kind_and_shows_mistakes() -> None:
    def outcome(tokens: int, right: bool) -> EvaluationOutcome:
        question = Question("What is the door code for Berlin?", "4821", "door code")
        return EvaluationOutcome(
            EvaluationCase((1, 2), 1, tokens, question), right, "4821" if right else "4822"
        )

    printed = io.StringIO()
    outcomes = [outcome(600, True), outcome(700, True), outcome(1200, False)]
    report(outcomes, Console(file=printed, width=120))
    assert "66.67%" in printed.getvalue()
    assert "500+ tokens" in printed.getvalue()
    assert "expected '4821', got '4822'" in printed.getvalue()


@pytest.mark.parametrize("turns", [1, 3])
def test_a_tool_case_ends_with_a_call_or_an_answer(
    shipped_tokenizer: Tokenizer, turns: int
) -> None:
    cases = draw_tool_cases(shipped_tokenizer, 60, (100, 600), turns)
    assert cases == draw_tool_cases(shipped_tokenizer, 60, (100, 600), turns)
    assert cases != draw_tool_cases(shipped_tokenizer, 60, (100, 600), turns, seed=1)
    for case in cases:
        assert 100 <= case.handbook_tokens <= 600
        ending = shipped_tokenizer.decode(case.ids[-case.answer :], skip_special_tokens=False)
        assert ending == case.question.answer + "<|end|>"
        assert ending.startswith("<tool_call>") == case.question.kind.endswith(", call")
        whole = shipped_tokenizer.decode(case.ids, skip_special_tokens=False)
        assert "<tools>" in whole
        assert ("<tool_response>" in whole) >= ("answer" in case.question.kind)


def test_tool_cases_are_of_every_kind(shipped_tokenizer: Tokenizer) -> None:
    cases = draw_tool_cases(shipped_tokenizer, 200, (100, 600))
    outcomes = answer_cases(Oracle(blind=2000), shipped_tokenizer, cases)
    assert accuracy(outcomes) == 1.0
    assert set(by_kind(outcomes)) == {
        "tools: getter, call", "tools: lookup, call", "tools: search, call",
        "tools: result, answer", "tools: nothing found, answer",
        "tools: stated, no call", "tools: no tool, no call", "tools: talk, no call",
    }  # fmt: skip


def test_one_wrong_token_in_a_call_is_wrong(shipped_tokenizer: Tokenizer) -> None:
    cases = draw_tool_cases(shipped_tokenizer, 60, (100, 600))
    brace = shipped_tokenizer.encode("{").ids[0]
    for outcome in answer_cases(Oracle(blind=brace), shipped_tokenizer, cases):
        assert outcome.right != ("{" in outcome.case.question.answer)
