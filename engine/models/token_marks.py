"""The special tokens of a tokenizer: those that structure a prompt.

An added token is special if a file of the model marks it as special, if it is in brackets and a
chat template writes it, or if it is spelled like a special token (`<|User|>`). Other added tokens
are text that the vocabulary lacked, such as a run of spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.models.model_files import read_object, read_text

_BAR = "\N{FULLWIDTH VERTICAL LINE}"  # the vertical bar in DeepSeek's special tokens
_IN_BRACKETS = re.compile(rf"[<\[{{{_BAR}].+[>\]}}{_BAR}]", re.DOTALL)
_NO_TEXT = re.compile(rf"<[|{_BAR}].+|.+[|{_BAR}]>", re.DOTALL)
_LEAST_LENGTH = 2  # a single character cannot be special, because it may be part of a word
_ID_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class ModelFileBroken(ValueError):
    """An error: the model cannot be served, because a file in its directory is broken."""


@dataclass(frozen=True, slots=True)
class TokenMarks:
    """The special tokens, by text and by id, and the sources of all chat templates."""

    texts: frozenset[str] = frozenset()
    ids: frozenset[int] = frozenset()
    templates: str = ""

    def are_of(self, text: str, *, is_special: bool) -> bool:
        """Return whether an added token is special. `is_special` is its flag in tokenizer.json."""
        if len(text) < _LEAST_LENGTH:
            return False
        if is_special or text in self.texts or _NO_TEXT.fullmatch(text):
            return True
        return bool(_IN_BRACKETS.fullmatch(text)) and text in self.templates

    def with_texts(self, more: Iterable[str]) -> TokenMarks:
        """Return these special tokens, and further special tokens with the texts `more`."""
        return replace(self, texts=self.texts | frozenset(more))


NO_MARKS = TokenMarks()


def is_in_angles(text: str) -> bool:
    """Return whether llguidance treats an added token with this text as special."""
    return text.startswith("<") and text.endswith(">")


def read_token_marks(model_dir: Path, template: Path | None = None) -> TokenMarks:
    """Read the special tokens of a directory, and of the operator's `template`.

    Missing files are skipped. Raises ModelFileBroken for a file that is not valid JSON or text.
    """
    config = object_in(model_dir / "tokenizer_config.json")
    named = object_in(model_dir / "special_tokens_map.json")
    texts = {*_named(config), *_named(named), *_declared(config)}
    configs = [object_in(model_dir / name) for name in ("config.json", "generation_config.json")]
    ids = {token_id for found in configs for token_id in _ids(found)}
    templates = [*_templates(model_dir, config), *_files([] if template is None else [template])]
    return TokenMarks(frozenset(texts), frozenset(ids), "\n".join(templates))


def _named(config: dict[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if name.endswith(("_token", "_special_tokens")):
            yield from _contents(value)


def _contents(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _contents(one)
    elif isinstance(value, dict):
        yield from _contents([value["content"]] if "content" in value else [*value.values()])


def _declared(config: dict[str, Any]) -> Iterator[str]:
    declared = config.get("added_tokens_decoder")
    for token in declared.values() if isinstance(declared, dict) else ():
        if isinstance(token, dict) and token.get("special") is True:
            yield from _contents(token)


def _ids(config: dict[str, Any]) -> Iterator[int]:
    inner = config.get("text_config")
    for found in (config, inner if isinstance(inner, dict) else {}):
        for name in _ID_FIELDS:
            value = found.get(name)
            for token_id in value if isinstance(value, list) else [value]:
                if isinstance(token_id, int):
                    yield token_id


def _templates(model_dir: Path, config: dict[str, Any]) -> Iterator[str]:
    inner = object_in(model_dir / "chat_template.json")
    for found in (config.get("chat_template"), inner.get("chat_template")):
        yield from _strings(found)
    yield from _files(sorted(model_dir.glob("**/*.jinja")))


def _files(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileBroken(f"{path}: {error}") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value if isinstance(value, list) else value.values():
            yield from _strings(one)


def object_in(path: Path) -> dict[str, Any]:
    """Read a JSON object, or {} if there is no such file. Raises ModelFileBroken."""
    if not path.exists():
        return {}
    try:
        return read_object(path)
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise ModelFileBroken(f"{path}: {error}") from error
