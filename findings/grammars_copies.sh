#!/bin/bash
# llguidance 1.9.1: `LLMatcher.deep_copy()`, "a deep copy of the matcher", shares its lexer with all
# other copies. Once one copy reaches the limit of lexer states, the first matcher and all other copies
# fail at their next token, also copies made later: the states that one copy needs count for all copies.
# The exit status is 0 while this is so.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.6 tokenizers==0.23.3
"$place/venv/bin/python" - <<'PYTHON'
import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokens = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokens.decoder = decoders.ByteLevel()
tokens.add_special_tokens(["<eos>"])
vocabulary = LLTokenizer(tokens.to_str(), eos_token=tokens.token_to_id("<eos>"))
GRAMMAR = LLMatcher.grammar_from_regex("[a-z]{0,5000}")


def start():
    limits = LLParserLimits(max_lexer_states=200, verbose_errors=False)
    return LLMatcher(vocabulary, GRAMMAR, log_level=0, limits=limits)


def says(matcher, text):
    for token in tokens.encode(text).ids:
        matcher.compute_bitmask()
        matcher.consume_token(token)
    return "fails" if matcher.is_error() else "goes on"


first = start()
short, long = first.deep_copy(), first.deep_copy()
seen = {
    "a copy, of 5 letters": says(short, "a" * 5),
    "another, of 300": says(long, "a" * 300),
    "the first again, with 1 more": says(short, "b"),
    "a new copy, of 5": says(first.deep_copy(), "b" * 5),
    "a new matcher, of 5": says(start(), "b" * 5),
}
print("llguidance 1.9.1, at most 200 lexer states:", seen)
sys.exit(list(seen.values()) != ["goes on", "fails", "fails", "fails", "goes on"])
PYTHON
