#!/usr/bin/env bash
# Three surprises of agents, installed unmodified. Each prints what it saw; the exit status is 0 while
# all three are as described. Needs python3 with pip, npm, and 0.5 GB in a temporary directory.
#
# 1. pi 1.6.0, `pi -p`: if the server refuses the prompt as too long (400, context_length_exceeded),
#    pi ends with status 0 and no output.
# 2. The same command after a 429: pi tries again after 2, 4 and 8 s, however long Retry-After says,
#    and then gives up.
# 3. graphiti-core 0.31.2 imports httpx but does not declare it as a dependency, so beside today's
#    openai, which does not install httpx, its import fails.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
npm install --silent --prefix node22 node@22.23.3
PATH="$PWD/node22/node_modules/.bin:$PATH"
npm install --silent --prefix agents @earendil-works/pi-coding-agent@1.6.0
python3 -m venv graphiti
graphiti/bin/pip install --quiet --disable-pip-version-check graphiti-core==0.31.2 openai==3.57.0

cat > server.py <<'PYTHON'
"""A server that refuses all chats with the status of the address, as OpenAI's API would."""
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

SAID = {
    "400": ("this model's maximum context length is 6000 tokens", "context_length_exceeded"),
    "429": ("limited to 4 requests a minute; please try again in 60s", "rate_limit_exceeded"),
}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        status = self.path.split("/")[1]
        with open(f"asked-{status}", "a") as asked:
            print(time.time(), file=asked)
        message, code = SAID[status]
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        data = json.dumps({"error": error}).encode()
        self.send_response(int(status))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if status == "429":
            self.send_header("retry-after", "60")
        self.end_headers()
        self.wfile.write(data)


server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, file=open("port", "w"), flush=True)
server.serve_forever()
PYTHON
python3 server.py &
served=$!
trap 'kill "$served"; rm -rf "$directory"' EXIT
until [ -s port ]; do sleep 0.1; done

ask() {
    mkdir -p "home-$1/.pi/agent"
    model='{"id": "m", "name": "m", "contextWindow": 100000, "maxTokens": 4000}'
    provider='{"baseUrl": "http://127.0.0.1:'$(cat port)"/$1"'/v1", "api": "openai-completions", "apiKey": "key"'
    echo "{\"providers\": {\"here\": $provider, \"models\": [$model]}}}" > "home-$1/.pi/agent/models.json"
    (cd "home-$1" && HOME=$PWD PI_OFFLINE=1 ../agents/node_modules/.bin/pi -p --provider here \
        --model m Hi < /dev/null 2>&1)
}

printed=$(ask 400) && status=0 || status=$?
echo "1. pi after a 400: status $status, output '$printed'"
[ "$status" = 0 ] && [ -z "$printed" ]

printed=$(ask 429) && status=0 || status=$?
waits=$(python3 -c 'a = [float(x) for x in open("asked-429")]; print([round(y - x) for x, y in zip(a, a[1:])])')
echo "2. pi after 429s with Retry-After: 60: status $status, waited $waits s"
[ "$status" = 1 ] && [ "$waits" = "[2, 4, 8]" ]

told=$(graphiti/bin/python -c 'import graphiti_core' 2>&1 | tail -n 1) || true
echo "3. graphiti-core 0.31.2: $told"
[ "$told" = "ModuleNotFoundError: No module named 'httpx'" ]
