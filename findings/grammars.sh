#!/bin/bash
# llguidance 1.9.1 converts GBNF (llama.cpp's grammars) so that some texts of a grammar are refused: a
# repeated character class becomes a terminal, terminals take the longest match, and the lexer never
# backtracks. For `[a-z]+ "ing"` it accepts no word that continues after its first "ing", and `.`
# matches no line break. llama.cpp accepts such words and line breaks. The exit status is 0 while this is so.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.6 tokenizers==0.23.3
"$place/venv/bin/python" - <<'PYTHON'
import sys

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokens = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokens.decoder = decoders.ByteLevel()
tokens.add_special_tokens(["<eos>"])
vocabulary = LLTokenizer(tokens.to_str(), eos_token=tokens.token_to_id("<eos>"))


def has(grammar, text):
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(gbnf_to_lark(grammar)))
    ids = tokens.encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


seen = {
    "sing": has('root ::= [a-z]+ "ing"', "sing"),
    "singing": has('root ::= [a-z]+ "ing"', "singing"),
    "cats": has('root ::= w "s"\nw ::= [a-z]+', "cats"),
    "a line break": has('root ::= "a" . "b"', "a\nb"),
}
print("llguidance 1.9.1, GBNF by its own converter:", seen)
sys.exit(any(seen[text] for text in ("singing", "cats", "a line break")))
PYTHON
