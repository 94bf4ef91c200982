#!/usr/bin/env bash
# Five surprises of clients, installed unmodified. Each prints what it saw; the exit status is 0 while
# all five are as described. Needs python3 with pip, npm, and 0.6 GB in a temporary directory.
#
# 1. npm 11 on node 20.20.2 installs, without a message, an old version of a package whose newest
#    version needs a newer node: `npm install ai` installs ai 6, although the tag `latest` is a
#    version 7 (`engines`: node >= 22).
# 2. huggingface_hub 2.4.0: InferenceClient(base_url=...) without a model requests the model "dummy",
#    and its class for a named tool sends a `tool_choice` that has no "type".
# 3. anthropic 2.14.0: messages.create accepts no `temperature`. autogen-ext 0.7.5, whose extra allows
#    any anthropic from 0.48 on, passes a `temperature`, so each request ends in a TypeError.
# 4. guidance 0.3.1, VLLMModel: guidance's own matcher reads the generated text again. If that second
#    reading differs, all captures are absent, without an error. So `gen("b") + "\n" + gen("c")`
#    captures neither for any answer, and `json` captures nothing if no space follows `:`.
# 5. shell-gpt 1.5.1 imports click but does not declare it as a dependency: with today's typer it does
#    not start.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
install() {
    python3 -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}
install hub huggingface_hub==2.4.0
install autogen autogen-ext==0.7.5 autogen-core==0.7.5 autogen-agentchat==0.7.5 anthropic==2.14.0 tiktoken
install guidance guidance==0.3.1 openai==3.57.0
install shell shell-gpt==1.5.1

npm install --silent --prefix old node@20.20.2
PATH="$PWD/old/node_modules/.bin:$PATH" npm install --silent --prefix here ai
took=$(node -p 'require("./here/node_modules/ai/package.json").version')
latest=$(npm view ai dist-tags.latest)
echo "1. npm $(npm --version) on node 20.20.2: ai $took, latest is $latest"
[ "${took%%.*}" -lt "${latest%%.*}" ]

cat > server.py <<'PYTHON'
"""A server of chats: says `text` in one event, and keeps what it was asked."""
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    text, asked = "", []

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        said = {"role": "assistant", "content": self.text}
        whole = {"id": "1", "created": 1, "model": "m", "object": "chat.completion"}
        if body.get("stream"):
            whole["object"] += ".chunk"
            parts = [{"index": 0, "delta": said, "finish_reason": None}]
            parts += [{"index": 0, "delta": {}, "finish_reason": "stop"}]
            events = [json.dumps({**whole, "choices": [one]}) for one in parts]
            data = "".join(f"data: {one}\n\n" for one in [*events, "[DONE]"]).encode()
        else:
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            data = json.dumps({**whole, "choices": [choice]}).encode()
        self.send_response(200)
        kind = "text/event-stream" if body.get("stream") else "application/json"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def started():
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"
PYTHON

PYTHONPATH=. hub/bin/python - <<'PYTHON'
from huggingface_hub import ChatCompletionInputFunctionName as Name
from huggingface_hub import ChatCompletionInputToolChoiceClass as Choice
from huggingface_hub import InferenceClient
from server import Handler, started

tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
client = InferenceClient(base_url=started(), api_key="key")
asked = [{"role": "user", "content": "Hi"}]
client.chat_completion(asked, tools=[tool], tool_choice=Choice(function=Name(name="f")))
[body] = Handler.asked
print("2. huggingface_hub 2.4.0 asks:", body["model"], body["tool_choice"])
assert body["model"] == "dummy"
assert body["tool_choice"] == {"function": {"name": "f"}}
PYTHON

autogen/bin/python - <<'PYTHON'
import asyncio
import inspect

import anthropic
from autogen_core.models import UserMessage
from autogen_ext.models.anthropic import AnthropicChatCompletionClient

info = dict.fromkeys(("vision", "function_calling", "json_output", "structured_output"), True)
client = AnthropicChatCompletionClient(
    model="m", api_key="key", base_url="http://127.0.0.1:9", model_info={**info, "family": "unknown"}
)
assert "temperature" not in inspect.signature(client._client.messages.create).parameters
try:
    asyncio.run(client.create([UserMessage(content="Hi", source="user")]))
except TypeError as error:
    print(f"3. anthropic {anthropic.__version__} with autogen-ext 0.7.5:", error)
    assert "temperature" in str(error)
else:
    raise SystemExit("3. it asks")
PYTHON

PYTHONPATH=. guidance/bin/python - <<'PYTHON'
from guidance import assistant, gen, json, user
from guidance.models.experimental import VLLMModel
from server import Handler, started

url = started()
schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def captures(said, grammar):
    Handler.text = said
    model = VLLMModel("m", base_url=url, api_key="key", echo=False)
    with user():
        model += "Hi"
    with assistant():
        model += grammar
    return {name: model[name] for name in "bcn" if name in model}


two = captures("one\ntwo", gen("b") + "\n" + gen("c"))
tight = captures('{"n":1}', json("n", schema=schema))
wide = captures('{"n": 1}', json("n", schema=schema))
print("4. guidance 0.3.1 captures:", two, tight, wide)
assert (two, tight, wide) == ({}, {}, {"n": '{"n": 1}'})
PYTHON

told=$(shell/bin/sgpt --version 2>&1 | tail -n 1) && exit 1
echo "5. shell-gpt 1.5.1: $told"
[[ $told == *"No module named 'click'"* ]]
