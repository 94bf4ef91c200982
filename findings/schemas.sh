#!/bin/bash
# llguidance 1.9.1: if a character class in a string's `pattern` excludes the quote or the backslash,
# the string may have that character nevertheless, since JSON writes it after a backslash: "^[^\"]$"
# accepts "\"". Other characters that JSON escapes, such as the line break, are excluded as they
# should be. The exit status is 0 while this is so.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import json
import re
import sys

from llguidance import LLMatcher, LLTokenizer

vocabulary = LLTokenizer("byte")


def takes(pattern, text):
    schema = json.dumps({"type": "string", "pattern": pattern})
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_json_schema(schema), log_level=0)
    ids = list(json.dumps(text).encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


seen = []
for char in ('"', "\\", "\n", "b"):
    pattern = f"^[^{re.escape(char)}]$" if char != "\n" else r"^[^\n]$"
    assert not re.search(pattern, char) and takes(pattern, "x")
    seen.append((pattern, takes(pattern, char)))
print("llguidance 1.9.1, what the class leaves out is taken:", seen)
sys.exit(0 if [taken for _, taken in seen] == [True, True, False, False] else 1)
PYTHON
