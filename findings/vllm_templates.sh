#!/usr/bin/env bash
# Two of vLLM 0.33.0's example templates for tools render the history's calls in another form than the
# one in which the model writes calls and vLLM's own parser for the model reads them. So the model sees
# its earlier calls in the wrong form. Each call is printed; the exit status is 0 while this is so.
#
# 1. gemma3_pythonic: no comma between arguments, since "first" is set inside a loop and jinja drops
#    the value at the end of the loop's body. [f(a="b"c=3)]
# 2. phi4_mini: the call lacks the "functools" that the same template asks for, and the arguments
#    have the form in which Python prints a dict.
#
# Needs python3 with pip, curl, and 0.1 GB in a temporary directory.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check jinja2==3.1.6 uv==0.13.9
echo "vllm==0.33.0" | env/bin/uv pip compile --quiet --no-deps --format pylock.toml - > lock.toml
address=$(env/bin/python -c 'import tomllib
print(tomllib.load(open("lock.toml", "rb"))["packages"][0]["sdist"]["url"])')
curl --silent --fail --location "$address" | tar xz --wildcards '*/examples/tool_chat_template_*'
env/bin/python - <<'PYTHON'
import json
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment


def call(name: str, begins: str, ends: str) -> str:
    [path] = Path().glob(f"*/examples/tool_chat_template_{name}.jinja")
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    made.filters["tojson"] = json.dumps
    function = {"name": "find", "arguments": {"a": "b", "c": 3}}
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]},
        {"role": "tool", "content": "4", "tool_call_id": "1", "name": "find"},
    ]
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "c": {"type": "integer"}}}
    tool = {"name": "find", "description": "Finds.", "parameters": schema}
    text = made.from_string(path.read_text()).render(
        messages=said, tools=[{"type": "function", "function": tool}], bos_token=""
    )
    begin = text.rindex(begins)
    found = text[begin : text.index(ends, begin) + len(ends)]
    print(f"{name}: {found}")
    return found


gemma = call("gemma3_pythonic", "[find(", ")]")
phi = call("phi4_mini", '{"name": "find", "arg', "}}")
assert gemma == '[find(a="b"c=3)]', gemma
assert phi == """{"name": "find", "arguments": {'a': 'b', 'c': 3}}""", phi
PYTHON
