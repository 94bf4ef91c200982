"""Files with one wrong field: each file is refused with a one-line error, or is served."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from cli.errors import CliError
from cli.load.requests.trace import read_trace
from cli.plan.decoder import read_decoder
from engine.models.checks import check_served
from engine.models.errors import ModelError
from tests.cli.console import Console

BLOCK = 16
ROW = {"timestamp": 1, "input_length": 20, "output_length": 3, "hash_ids": [1, 2], "tenant": "t"}
CONFIG = json.loads((Path(str(files("handbook"))) / "model" / "config.json").read_text())
WRONG = (
    *("null", "true", '"x"', '""', "-1", "0", "1.5", "NaN", "1e400", "[]", "{}", '{"a": null}'),
    *("[null]", "1e300", "9" * 23, r'"\ud800"', '"\x00"'),
)


def with_each_field_wrong(right: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each field's name with JSON in which that field is wrong or missing."""
    for field in right:
        for value in WRONG:
            parts = ({one: right[one]} for one in right if one != field)
            others = [json.dumps(part)[1:-1] for part in parts]
            yield field, "{" + ", ".join([f'"{field}": {value}', *others]) + "}"
        yield field, json.dumps({one: right[one] for one in right if one != field})


def refusal(read: Callable[[], object]) -> str | None:
    """Return the error that would end a command, or None."""
    try:
        read()
    except (CliError, ModelError) as error:
        return str(error)
    return None


def test_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    refused = set[str]()
    for field, line in with_each_field_wrong(ROW):
        path.write_text(f"{json.dumps(ROW)}\n{line}\n")
        if (why := refusal(lambda: read_trace(path, BLOCK))) is not None:
            assert why.startswith(f"{path}, line 2: ")
            assert field in why or "tokens are" in why or "(byte " in why or "range" in why
            assert "\n" not in why
            refused.add(field)
    assert refused == {*ROW}
    path.write_text(f"{json.dumps(ROW)}\n")
    assert read_trace(path, BLOCK).num_blocks == 2, "the control"


def test_a_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    refused = set[str]()
    for field, text in with_each_field_wrong(CONFIG):
        path.write_text(text)
        planned = refusal(lambda: read_decoder(path))
        served = refusal(lambda: check_served(tmp_path, has_weights=False))
        for why in (planned, served):
            if why is not None:
                names = (field, field.replace("_", " "), field.removeprefix("torch_"), "(byte ")
                assert any(name in why for name in names), why
                assert "\n" not in why
                refused.add(field)
        assert planned is None or planned.startswith(str(path))
    assert refused >= {"vocab_size", "hidden_size", "num_hidden_layers", "architectures"}
    path.write_text(json.dumps(CONFIG))
    assert read_decoder(path).hidden_size == CONFIG["hidden_size"], "the control"
    assert check_served(tmp_path, has_weights=False).max_positions == 4096


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe{}", b"1e400", b"[" * 10_000, b"\0"])
def test_other_content(tmp_path: Path, console: Console, content: bytes) -> None:
    model, trace = tmp_path / "model", tmp_path / "trace.jsonl"
    model.mkdir()
    for path in (model / "config.json", trace):
        path.write_bytes(content)
    planned = console.type("plan", "--model", str(model))
    named = console.type("models", str(model / "config.json"))
    replayed = console.type("simulate", str(trace))
    assert [one.status for one in (planned, named, replayed)] == [2, 1, 2]
    for one, path in ((planned, model), (named, model), (replayed, trace)):
        assert str(path) in one.err
        assert len(one.err.strip().splitlines()) == 1
