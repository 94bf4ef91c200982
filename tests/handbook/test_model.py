"""The shipped model: it is small, transformers can load it, and its answers are right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from handbook.texts.cases import draw_cases
from handbook.texts.facts import UNKNOWN
from handbook.texts.handbooks import make_handbook, make_messages, make_questions
from tests.doubles.engine.shapes import EMBEDDED

BEGIN, END = "<|begin|>", "<|end|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"

BY_HAND = """The support code for Berlin is 4821.
The manager of the Oslo office is Ingrid Dahl.
The wifi password for Paris is Blue-hunter2."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, since the test workers share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)


def test_the_directory_is_small_and_whole() -> None:
    files = {path.name: path.stat().st_size for path in EMBEDDED.iterdir()}
    assert sum(files.values()) <= 16 * 1000 * 1000
    assert set(files) == {
        "README.md", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


def test_it_answers_held_out_handbooks(
    model: LlamaForCausalLM, shipped_tokenizer: Tokenizer
) -> None:
    cases = [draw_cases(shipped_tokenizer, number, 1, tokens=500)[0] for number in range(20)]
    assert sum(is_right(model, case.prompt, case.answer) for case in cases) >= 19


@torch.inference_mode()
def is_right(model: LlamaForCausalLM, prompt: list[int], answer: list[int]) -> bool:
    """Return whether each token of the answer is the most likely one after the tokens before it."""
    likeliest = model(torch.tensor([prompt + answer])).logits[0].argmax(-1).tolist()
    return bool(likeliest[len(prompt) - 1 : -1] == answer)


def answered(model: LlamaForCausalLM, tokenizer: Tokenizer, system: str, question: str) -> str:
    """Return the model's greedy answer, including its end token."""
    before = f"{SYSTEM}{system}{END}" if system else ""
    ids = tokenizer.encode(f"{BEGIN}{before}{USER}{question}{END}{ASSISTANT}").ids
    end = tokenizer.token_to_id(END)
    said = model.generate(
        torch.tensor([ids]), max_new_tokens=40, do_sample=False, eos_token_id=end, pad_token_id=end
    )
    return tokenizer.decode(said[0, len(ids) :].tolist(), skip_special_tokens=False)


@pytest.mark.parametrize("system", ["", "You are a helpful assistant.", BY_HAND])
@pytest.mark.parametrize(
    "question",
    ["What is the weather in Oslo?", "Is Web-3 running?", "What time is it in Rome?", "A joke!"],
)
def test_without_tools_it_calls_none(
    model: LlamaForCausalLM, shipped_tokenizer: Tokenizer, system: str, question: str
) -> None:
    said = answered(model, shipped_tokenizer, system, question)
    assert said.endswith(END)
    assert "tool" not in said


def test_without_the_handbook_it_is_wrong(
    model: LlamaForCausalLM, shipped_tokenizer: Tokenizer
) -> None:
    """Ask with other handbooks as prefixes: the answers are wrong, so they come from the prompt."""
    unknown, user = (shipped_tokenizer.encode(text).ids for text in (UNKNOWN + END, USER))
    drawn = [draw_cases(shipped_tokenizer, number, 1, tokens=200)[0] for number in range(20)]
    answerable = [case for case in drawn if case.answer != unknown]
    mixed = [
        (other.prompt[: other.prompt.index(*user)] + case.prompt[case.prompt.index(*user) :], case)
        for case, other in itertools.pairwise(answerable)
    ]
    assert len(mixed) > 10
    assert not any(is_right(model, prompt, case.answer) for prompt, case in mixed)


def test_transformers_loads_it_and_generates_the_answers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
    handbook = make_handbook(5, facts=8)
    for question in make_questions(handbook, 5, 3):
        prompt = tokenizer.apply_chat_template(
            make_messages(handbook, (question,)), add_generation_prompt=True, return_tensors="pt",
            return_dict=True,
        )  # fmt: skip
        said = model.generate(**prompt, max_new_tokens=40)[0, prompt["input_ids"].shape[1] :]
        assert tokenizer.decode(said, skip_special_tokens=True) == question.answer


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the support code for Berlin?", "4821"),
        ("Who manages the Oslo office?", "Ingrid Dahl"),
        ("What is the wifi password for Paris?", "Blue-hunter2"),
        ("What is the support code for Oslo?", "The handbook does not say."),
    ],
)
def test_a_handbook_typed_by_hand(
    model: LlamaForCausalLM, shipped_tokenizer: Tokenizer, question: str, answer: str
) -> None:
    prompt = f"<|begin|><|system|>{BY_HAND}<|end|><|user|>{question}<|end|><|assistant|>"
    ids = shipped_tokenizer.encode(prompt).ids
    assert is_right(model, ids, shipped_tokenizer.encode(answer + END).ids)
