"""The tokenizer: byte-level BPE trained on generated text, and the chat template.

Any text survives encoding and decoding. Capitalised words and digits are split from the space
before them. So a name or a number has the same tokens everywhere, and the model can copy it from
the handbook into an answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from handbook.training.names import NameSource, Split
from handbook.training.text import write_handbook, write_question, write_small_talk

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (BEGIN, END, PAD, SYSTEM, USER, ASSISTANT)
VOCABULARY = 2048
CONTEXT = 4096

PIECES = r"\p{N}|\p{Lu}+\p{Ll}*| ?[\p{Ll}\p{Lo}\p{Lm}\p{M}]+| ?[^\s\p{L}\p{N}]|\s"

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- macro listed() -%}
{{- '<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + tool | tojson -}}{%- endfor -%}
{{- '\\n</tools>' -}}
{%- endmacro -%}
{%- if tools and (not messages or messages[0]['role'] not in ('system', 'developer')) -%}
{{- '<|system|>' + listed() + eos_token -}}
{%- endif -%}
{%- for message in messages -%}
{%- set content = message['content'] or '' -%}
{%- if message['role'] in ('system', 'developer') -%}
{{- '<|system|>' + content -}}
{%- if tools and loop.first -%}
{{- ('\\n\\n' if content else '') + listed() -}}
{%- endif -%}
{{- eos_token -}}
{%- elif message['role'] == 'user' -%}
{{- '<|user|>' + content + eos_token -}}
{%- elif message['role'] == 'assistant' -%}
{{- '<|assistant|>' + content -}}
{%- for call in message['tool_calls'] or [] -%}
{%- set function = call['function'] -%}
{%- set arguments = function['arguments'] -%}
{{- '\\n' if content or not loop.first else '' -}}
{{- '<tool_call>\\n{"name": "' + function['name'] + '", "arguments": ' -}}
{{- (arguments if arguments is string else arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- eos_token -}}
{%- elif message['role'] == 'tool' -%}
{%- set follows = not loop.first and messages[loop.index0 - 1]['role'] == 'tool' -%}
{{- '\\n' if follows else '<|user|>' -}}
{{- '<tool_response>\\n' + content + '\\n</tool_response>' -}}
{{- '' if not loop.last and messages[loop.index0 + 1]['role'] == 'tool' else eos_token -}}
{%- else -%}
{{- raise_exception(
    'Only system, developer, user, assistant and tool messages are supported.'
) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""
"""The chat template. Tools, calls and results are in the form of `handbook.training.hermes`."""


def train_tokenizer(texts: int = 4000, seed: int = 0) -> Tokenizer:
    """Train a tokenizer on `texts` generated handbooks and questions about them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(texts, seed), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` in Hugging Face's format."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n")


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer saved in `directory`."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def _corpus(texts: int, seed: int) -> Iterator[str]:
    source = NameSource(random.Random(f"tokenizer {seed}"), Split.TRAIN)
    for _ in range(texts):
        handbook = write_handbook(source, source.number(3, 40))
        yield handbook.text
        for _ in range(8):
            question = write_question(source, handbook)
            yield question.text
            yield question.answer
        talk = write_small_talk(source)
        yield talk.text
        yield talk.answer
