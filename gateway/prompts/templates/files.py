"""The files of a model's directory with its chat templates and special tokens.

`transformers` reads the same files. chat_template.jinja is the template, and
additional_chat_templates/ has more templates by name. Without chat_template.jinja, the template
is in tokenizer_config.json, or in a processor's older chat_template.json. A file that the operator
names replaces all these files.
"""

from pathlib import Path
from typing import Any

from engine.models.model_files import read_text
from engine.models.token_marks import ModelFileBroken, object_in

DEFAULT, TOOL_USE = "default", "tool_use"
_NO_BOUND = 1e18


def template_sources(model_dir: Path, own: Path | None = None) -> dict[str, str]:
    """Read the templates by name, or the operator's `own`.

    An empty template raises ModelFileBroken.
    """
    if own is not None:
        return {DEFAULT: _text(own)}
    alone = {DEFAULT: model_dir / "chat_template.jinja"}
    further = sorted((model_dir / "additional_chat_templates").glob("*.jinja"))
    paths = alone | {path.stem: path for path in further}
    files = {name: _text(path) for name, path in paths.items() if path.exists()}
    return (
        files
        or _listed(tokenizer_config(model_dir))
        or _listed(object_in(model_dir / "chat_template.json"))
    )


def special_tokens(model_dir: Path) -> dict[str, str]:
    """Read the named special tokens (`bos_token` ...), which templates use."""
    named = {}
    for name, value in tokenizer_config(model_dir).items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            named[name] = content
    return named


def tokenizer_config(model_dir: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; return {} without this file.

    Raises ModelFileBroken if the file is not JSON.
    """
    return object_in(model_dir / "tokenizer_config.json")


def tokenizer_info(model_dir: Path, own: Path | None = None) -> dict[str, Any]:
    """Describe the tokenizer: tokenizer_config.json without paths, tokens as texts.

    The description has the chat template in use, and the tokenizer's class in transformers.
    """
    config = {
        name: _as_text(value)
        for name, value in tokenizer_config(model_dir).items()
        if not name.endswith(("_file", "_or_path")) and _is_bound(value)
    }
    template = template_sources(model_dir, own).get(DEFAULT)
    config.pop("chat_template", None)
    shown = {} if template is None else {"chat_template": template}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **config, **shown}


def _as_text(value: Any) -> Any:
    """Replace added tokens, alone or in lists, by their texts; return other values unchanged."""
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    return value["content"] if isinstance(value, dict) and "content" in value else value


def _is_bound(value: Any) -> bool:
    """Return whether a value is a limit. A huge number stands for no limit."""
    return not isinstance(value, int | float) or value < _NO_BOUND


def _listed(config: dict[str, Any]) -> dict[str, str]:
    """Read `chat_template` in a JSON file: a text, or a list of names and texts."""
    found = config.get("chat_template")
    named = found if isinstance(found, list) else [{"name": DEFAULT, "template": found}]
    return {
        entry["name"]: entry["template"]
        for entry in named
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileBroken(f"{path}: {error}") from error
