#!/bin/bash
# llguidance 1.9.1: after `LLMatcher.rollback()` and another token, `compute_bitmask()` returns the mask
# that it made before the rollback, for the abandoned branch. That mask allows tokens that the grammar
# forbids, and forbids tokens that it allows. The mask is right if none was made before the rollback, or
# if the matcher never took the other branch. The exit status is 0 while this is so.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.6 tokenizers==0.23.3
"$place/venv/bin/python" - <<'PYTHON'
import sys

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
ids = {text: n for n, text in enumerate([*alphabet, "xy", "xz"])}
tokens = Tokenizer(models.BPE(ids, [("x", "y"), ("x", "z")]))
tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokens.decoder = decoders.ByteLevel()
tokens.add_special_tokens(["<eos>"])
vocabulary = LLTokenizer(tokens.to_str(), eos_token=tokens.token_to_id("<eos>"))
GRAMMAR = LLMatcher.grammar_from_lark('start: "a" x "y" | "b" x "z"\nx: /[xw]/')


def allowed(matcher):
    mask = matcher.compute_bitmask()
    return [text for text in ("xy", "xz") if mask[ids[text] // 8] >> ids[text] % 8 & 1]


def after(first, *, looks):
    """What may follow b, where `first` came before it and was taken back."""
    matcher = LLMatcher(vocabulary, GRAMMAR, log_level=0)
    if first is not None:
        matcher.consume_token(ids[first])
        if looks:
            matcher.compute_bitmask()
        matcher.rollback(1)
    matcher.consume_token(ids["b"])
    return allowed(matcher)


seen = {
    "b alone": after(None, looks=False),
    "a taken back, then b": after("a", looks=False),
    "a and its mask taken back, then b": after("a", looks=True),
}
print("llguidance 1.9.1:", seen)
sys.exit(list(seen.values()) != [["xz"], ["xz"], ["xy"]])
PYTHON
