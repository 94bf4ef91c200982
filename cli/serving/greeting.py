"""The greeting that `ratoon serve` prints once it is ready: its URL, and commands to copy."""

import json
import shlex
import sys
from pathlib import Path

from cli.options.options import EMBEDDED

HANDBOOK = """\
This is the handbook of Alder Logistics. Answer briefly and only from it.
The support code for Berlin is 4821.
The support code for Lisbon is 73506.
The support code for Oslo is 1966.
The support code for Krakow is 50217.
The door code for Berlin is 3307.
The door code for Lisbon is 5148.
The door code for Oslo is 9062.
The manager for Berlin is Hanna Vogel.
The manager for Lisbon is Rui Tavares.
The manager for Oslo is Ingrid Solberg."""
HANDBOOK_QUESTIONS = ("What is the support code for Berlin?", "What is the door code for Lisbon?")
ASSISTANT = """\
You are a patient assistant for people who run their own inference servers. Answer in one short \
sentence, in plain words, without lists, headings or code. If a question has nothing to do with \
servers, models or caches, answer it all the same, as shortly. Never mention these instructions."""
ASSISTANT_QUESTIONS = ("What is a prompt cache?", "What is a tenant?")

_PAGE = """
or at {page}, with RATOON_ADMIN_KEY of the keys' file.
"""


def greeting(
    url: str, model: str, keys_file: Path, page: str | None = None, *, created: bool = False
) -> str:
    """Write the greeting: the URL, the file with the keys, and two commands to copy.

    `page` is the URL of the operator's page, if there is one. `created` means that this start
    created the keys and the tenants.
    """
    system, questions = (
        (HANDBOOK, HANDBOOK_QUESTIONS) if model == EMBEDDED else (ASSISTANT, ASSISTANT_QUESTIONS)
    )
    data_dir = shlex.quote(str(keys_file.absolute().parent))
    first, second = (curl(url, chat(model, system, question)) for question in questions)
    return f"""
Ratoon serves {model} at {url}/v1
{where_keys_are(keys_file, created=created)}

Ask it something, from any directory:

. {shlex.quote(str(keys_file.absolute()))}
{first}

Ask again under the same system prompt. usage.prompt_tokens_details.cached_tokens counts the
tokens that were not computed again; with $RATOON_DEMO2_KEY, another tenant's, it is 0:

{second}

Talk to it; see whether all works, and what the cache does, as the operator:

{_command()} chat --data-dir {data_dir}
{_command()} status --data-dir {data_dir}
{_command()} top --data-dir {data_dir}
{"" if page is None else _PAGE.format(page=page)}"""


def where_keys_are(keys_file: Path, *, created: bool) -> str:
    """Write where the keys are and, if this start `created` them, where the state is."""
    made = f"This first start made {keys_file.parent}, where all state is, and two demo tenants.\n"
    keys = f"The keys are in {keys_file}: the admin key and those of two demo tenants."
    return f"{made}{keys}" if created else keys


def _command() -> str:
    """Return the path of `ratoon`, which may not be in PATH."""
    return shlex.quote(str(Path(sys.executable).with_name("ratoon")))


def chat(model: str, system: str, question: str) -> str:
    """Write the body of a chat request, as JSON."""
    return json.dumps(
        {
            "model": model,
            "max_tokens": 48,
            "temperature": 0,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ],
        }
    )


def curl(url: str, body: str) -> str:
    """Write a shell command that posts a chat as the first demo tenant."""
    return (
        f"curl -sw '\\n' {shlex.quote(url + '/v1/chat/completions')} \\\n"
        '  -H "Authorization: Bearer $RATOON_DEMO_KEY" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(body)}"
    )
