#!/bin/bash
# llguidance 1.9.1: a matcher holds Python's lock while it consumes tokens (`consume_tokens`), however
# long that takes. The process's other threads stand still, so calling it in a thread gains a server
# nothing. Here a matcher consumes a million tokens in one call, while another thread counts every half
# millisecond. That thread makes 0.0 of the counts that it makes in an equally long rest. In the control,
# while hashlib, which releases the lock, makes a digest, the thread makes nearly all of them.
# The exit status is 0 while this is so.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.6 tokenizers==0.23.3
"$place/venv/bin/python" - <<'PYTHON'
import hashlib
import threading
import time

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokens = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokens.decoder = decoders.ByteLevel()
tokens.add_special_tokens(["<eos>"])
known = LLTokenizer(tokens.to_str(), eos_token=tokens.token_to_id("<eos>"))


class Counting(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.count, self.ends = 0, False

    def run(self):
        while not self.ends:
            self.count += 1
            time.sleep(0.0005)


def share(call):
    """Of the counts that the other thread makes in as long a rest, those during the call."""
    other = Counting()
    other.start()
    began, before = time.perf_counter(), other.count
    call()
    took, counted = time.perf_counter() - began, other.count - before
    before = other.count
    time.sleep(took)
    at_rest = other.count - before
    other.ends = True
    return round(counted / at_rest, 2), took


follow = LLMatcher(known, LLMatcher.grammar_from_regex("[a-z]*"), log_level=0)
ids = tokens.encode("abcdefghij" * 100_000).ids
following, took = share(lambda: follow.consume_tokens(ids))
assert not follow.is_error()
digesting, too = share(lambda: hashlib.sha256(bytes(200_000_000)).digest())
print(f"llguidance 1.9.1, {took:.2f} s: {following} of the counts; a digest, {too:.2f} s: {digesting}")
assert took > 0.05 and too > 0.05, "too short to tell"
assert following < 0.1
assert digesting > 0.5
PYTHON
