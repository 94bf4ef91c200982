import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.errors import BadSetting
from cli.load.requests.dataset import RequestSize, read_sizes
from cli.load.requests.trace import BadTrace
from tests.cli.simulation.traces import row, write


def words_of(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def sizes(path: Path, count: int, seed: int = 1) -> list[RequestSize]:
    return read_sizes(path, count, seed, block_size=10, output=99, count_tokens=words_of)


def sharegpt(path: Path, *conversations: Sequence[str]) -> Path:
    entries = [
        {"id": str(at), "conversations": [{"from": "human", "value": text} for text in said]}
        for at, said in enumerate(conversations)
    ]
    path.write_text(json.dumps(entries))
    return path


def test_sharegpt_is_the_first_question_and_its_answer(tmp_path: Path) -> None:
    file = sharegpt(tmp_path / "s.json", ("a b c", "d e", "f"), ("only a question",), ("", "x"))
    assert sizes(file, 1) == [RequestSize(3, 2)]


def test_each_is_drawn_once_before_any_a_second_time(tmp_path: Path) -> None:
    file = sharegpt(tmp_path / "s.json", *(("a " * n, "b") for n in range(1, 6)))
    prompts = [size.prompt for size in sizes(file, 10)]
    assert sorted(prompts[:5]) == sorted(prompts[5:]) == [1, 2, 3, 4, 5]
    assert prompts == [size.prompt for size in sizes(file, 10)]
    others = [[size.prompt for size in sizes(file, 10, seed)] for seed in range(2, 6)]
    assert any(other != prompts for other in others)


def test_questions_have_the_answers_of_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"turns": ["a b c d", "e"]}) + "\n")
    assert sizes(file, 2) == [RequestSize(4, 99)] * 2


def test_a_trace_is_taken_in_its_order_with_its_blocks(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [row(0, [5, 6]), row(1, [5, 7, 8])])
    first, second = sizes(file, 2)
    assert (len(first.blocks), len(second.blocks)) == (2, 3)
    assert first.blocks[0] == second.blocks[0]
    assert first.block_size == 10
    with pytest.raises(BadSetting, match="--requests: 3 is more than the 2 requests"):
        sizes(file, 3)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[]", BadSetting),
        ("[1]", BadSetting),
        ("x", BadSetting),
        ("", BadSetting),
        ("[" * 20_000 + "]" * 20_000, BadSetting),
        ('{"turns": []}\n', BadSetting),
        ('{"prompt": "x"}\n', BadTrace),
    ],
)
def test_a_file_of_no_known_form(tmp_path: Path, content: str, error: type[Exception]) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(error, match=str(tmp_path / "x")):
        sizes(tmp_path / "x", 1)
