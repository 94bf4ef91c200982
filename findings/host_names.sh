#!/bin/bash
# llguidance 1.9.1: a pattern of host names (labels of at most 63 characters, joined by dots) is
# accepted, and so is `maxLength: 253` alone, but both in one schema are refused: "Unable to determine
# if regex is empty". The pattern with `maxLength: 64` is accepted. The exit status is 0 while this
# is so.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import json
import sys

from llguidance import LLMatcher

LABEL, LAST = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "[a-z0-9][a-z0-9-]{0,61}[a-z0-9]"
PATTERN = {"pattern": rf"^(?:{LABEL}\.)+{LAST}$"}


def refusal(**also):
    schema = json.dumps({"type": "string", **also})
    return LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))


seen = [
    refusal(**PATTERN),
    refusal(maxLength=253),
    refusal(**PATTERN, maxLength=64),
    refusal(**PATTERN, maxLength=253),
]
print("llguidance 1.9.1, refusals:", seen)
is_so = seen[:3] == ["", "", ""] and "Unable to determine if regex is empty" in seen[3]
sys.exit(0 if is_so else 1)
PYTHON
