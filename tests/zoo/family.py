"""A family of models: its published files, and model directories made from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.zoo.templates import Template
from tests.zoo.tokenizers import Mark, ShippedTokenizer, write_small


@dataclass(frozen=True)
class Family:
    """Models that write turns in the same form.

    `is_own` says whether the tokenizer is the family's own. The `special` and `plain` tokens are
    added to it if the published file lacks them. If the family's own tokenizer is not available,
    another family's replaces it: the control tokens are the same, but texts are split in another
    way.
    """

    name: str
    source: Template
    tokenizer: ShippedTokenizer
    ends: tuple[str, ...]  # tokens that end a turn; the first is eos_token
    bos: str | None = None
    tools: str | None = None  # the format of its calls, as --tool-format names it
    reasons: bool = False
    model_type: str = "llama"
    special: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    is_own: bool = True
    is_served: bool = True  # whether Ratoon serves models of this architecture
    tool_use: Template | None = None  # a second template, for chats with tools

    def __str__(self) -> str:
        return self.name

    def template(self) -> str:
        """The source of the family's published chat template."""
        return self.source.read()

    def templates(self) -> dict[str, str]:
        """The family's templates by name, as in tokenizer_config.json."""
        further = {} if self.tool_use is None else {"tool_use": self.tool_use.read()}
        return {"default": self.template(), **further}

    def added(self) -> tuple[Mark, ...]:
        """The tokens added to the published tokenizer."""
        known = {mark.text for mark in self.tokenizer.marks()}
        marks = [*(Mark(text, True) for text in self.special)]
        marks += [Mark(text, False) for text in self.plain]
        marks += [Mark(text, True) for text in self.ends]
        return tuple(dict.fromkeys(mark for mark in marks if mark.text not in known))

    def marks(self) -> tuple[Mark, ...]:
        """List the tokenizer's added tokens that are special, or that the template writes."""
        template = "".join(self.templates().values())
        shipped = [
            mark
            for mark in self.tokenizer.marks()
            if mark.is_special or (mark.text.strip() and mark.text in template)
        ]
        return (*shipped, *self.added())

    def write(self, directory: Path, *, real: bool = False, pieces: tuple[str, ...] = ()) -> Path:
        """Write a model's directory without config and weights; return the directory.

        With `real`, its tokenizer is the family's; otherwise it is a small tokenizer of bytes,
        `pieces` and control tokens.
        """
        directory.mkdir(parents=True, exist_ok=True)
        if real:
            self.tokenizer.write(directory, self.added())
        else:
            write_small(directory, self.marks(), pieces)
        config = self.tokenizer.config() if real else {}
        named = [{"name": name, "template": one} for name, one in self.templates().items()]
        template = named if len(named) > 1 else self.template()
        config |= {"eos_token": self.ends[0], "chat_template": template}
        config |= {"bos_token": self.bos} if self.bos else {}
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return directory
