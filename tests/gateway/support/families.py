"""The served families as tiny tokenizers.

Each has its family's special tokens, splitting of text and chat template, but a vocabulary trained
on a few lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers.trainers import BpeTrainer

from engine.models.token_marks import TokenMarks
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer as Ours

_TEMPLATES = Path(__file__).parent.parent / "templates"
_HANDBOOK = Path(__file__).parents[3] / "handbook" / "model"
_LINES = ["The quick brown fox jumps over the lazy dog.\n\n", "system user assistant tool INST"] * 9
_CUT = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Family:
    """A family's tokenizer in the `tokenizers` library, Ratoon's tokenizer from the same file, and
    its template.
    """

    inner: Tokenizer
    ours: Ours
    template: ChatTemplate
    end: str  # the token that ends an answer

    def id_of(self, token: str) -> int:
        token_id = self.inner.token_to_id(token)
        assert token_id is not None
        return token_id

    @property
    def control_ids(self) -> set[int]:
        tokens = self.inner.get_added_tokens_decoder().items()
        return {i for i, token in tokens if token.content in self.ours.control.tokens}


def _special(*texts: str) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False) for text in texts]


def _plain(*texts: str) -> list[AddedToken]:
    return [AddedToken(text, special=False, normalized=False) for text in texts]


def _byte_level(added: list[AddedToken], *, ignore_merges: bool = False) -> Tokenizer:
    inner = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_CUT, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(_LINES, trainer)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens(added)
    return inner


def _sentencepiece(added: list[AddedToken], *, legacy: bool) -> Tokenizer:
    """Make a tokenizer converted from SentencePiece; `legacy` puts `▁` before every piece of
    text.
    """
    inner = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if legacy:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        inner.normalizer = normalizers.Sequence(steps)
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    first = [*added, *(AddedToken(f"<0x{byte:02X}>") for byte in range(256))]
    trainer = BpeTrainer(vocab_size=500, special_tokens=first, show_progress=False)
    inner.train_from_iterator(_LINES, trainer)
    # The trainer makes added tokens of the bytes. Converted files have only `added`.
    bare = Tokenizer(inner.model)
    if legacy:
        bare.normalizer = inner.normalizer
    else:
        bare.pre_tokenizer = inner.pre_tokenizer
    bare.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bare.add_tokens(added)
    return bare


def _family(inner: Tokenizer, template: str, end: str, **tokens: str) -> Family:
    source = (_TEMPLATES / f"{template}.jinja").read_text()
    ours = Ours(inner, marks=TokenMarks(templates=source))
    return Family(inner, ours, ChatTemplate(source, tokens, control=ours.control), end)


def _llama3() -> Family:
    reserved = [f"<|reserved_special_token_{n}|>" for n in range(20)]
    headers = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]
    added = _special("<|begin_of_text|>", "<|end_of_text|>", *headers, *reserved)
    inner = _byte_level(added, ignore_merges=True)
    return _family(inner, "llama3", "<|eot_id|>", bos_token="<|begin_of_text|>")


def _mistral(*, legacy: bool = False) -> Family:
    named = () if legacy else ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]")
    inner = _sentencepiece(_special("<unk>", "<s>", "</s>", *named), legacy=legacy)
    return _family(inner, "mistral", "</s>", bos_token="<s>", eos_token="</s>")


def _qwen(template: str) -> Family:
    markup = ["tool_call", "tool_response", "think"] if template == "qwen3" else []
    tags = [tag for name in markup for tag in (f"<{name}>", f"</{name}>")]
    special = _special("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>")
    inner = _byte_level([*special, *_plain(*tags, "<|fim_prefix|>")])
    inner.normalizer = normalizers.NFC()
    return _family(inner, template, "<|im_end|>", eos_token="<|im_end|>")


def _handbook() -> Family:
    inner = Tokenizer.from_file(str(_HANDBOOK / "tokenizer.json"))
    ours = Ours.load(_HANDBOOK)
    template = ChatTemplate.load(_HANDBOOK, ours.control)
    assert template is not None
    return Family(inner, ours, template, "<|end|>")


FAMILIES: dict[str, Callable[[], Family]] = {
    "llama3": _llama3,
    "mistral": _mistral,
    "mistral-legacy": lambda: _mistral(legacy=True),
    "qwen2": lambda: _qwen("qwen2"),
    "qwen3": lambda: _qwen("qwen3"),
    "handbook": _handbook,
}
