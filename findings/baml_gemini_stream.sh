#!/usr/bin/env bash
# baml-py 0.226.3, provider google-ai: a chunk of a stream without `usageMetadata` is ignored without
# an error, and its text is lost. Google's API sends the field in each chunk; Google's reference does
# not require it. Prints the text of two streams: one with the field in each chunk, one with the field
# only in the last. The exit status is 0 while the second text is empty. Needs python3 with pip.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check baml-py==0.226.3 pydantic==2.13.4
mkdir baml_src
cat > baml_src/main.baml <<'BAML'
generator target {
  output_type "python/pydantic"
  output_dir "../"
  version "0.226.3"
  default_client_mode "sync"
}
client<llm> Here {
  provider "google-ai"
  options {
    base_url env.HERE
    api_key "key"
    model "m"
  }
}
function Ask(question: string) -> string {
  client Here
  prompt #"{{ _.role("user") }} {{ question }}"#
}
BAML
env/bin/baml-cli generate >/dev/null 2>&1
cat > server.py <<'PYTHON'
"""A server of streams; prints its port. With "each", each chunk has the counts."""
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

USAGE = {"promptTokenCount": 2, "candidatesTokenCount": 2, "totalTokenCount": 4}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        chunks = [self.chunk("It "), self.chunk("rains."), self.chunk("", finishReason="STOP")]
        data = "".join(f"data: {json.dumps(one)}\r\n\r\n" for one in chunks).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chunk(self, text, **end):
        said = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0, **end}
        counted = {"usageMetadata": USAGE} if "each" in sys.argv or end else {}
        return {"candidates": [said], "modelVersion": "m", "responseId": "1", **counted}


server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.handle_request()
PYTHON

said() {
    python3 server.py "$@" > port &
    until [ -s port ]; do sleep 0.1; done
    HERE="http://127.0.0.1:$(cat port)/v1beta" BAML_LOG=off timeout 60 env/bin/python -c '
from baml_client.sync_client import b
print(b.stream.Ask("How is the weather?").get_final_response())'
    wait
    rm port
}
first=$(said each)
second=$(said last)
echo "in each chunk: '$first' - in the last alone: '$second'"
[ "$first" = "It rains." ] && [ "$second" = "" ]
