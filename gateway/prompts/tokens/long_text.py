"""The tokenising of long texts in chunks, which gives the same ids as the whole text.

For each byte of a text, the library takes some 200 bytes of memory before it returns the ids. The
library cannot be interrupted. A text may be cut where the tokenizer splits it anyway. Byte-level
tokenizers first split a text with a regular expression, and no token crosses such a split. All
expressions in `_KNOWN` split a text after a letter or digit that is followed by white space, or by
punctuation other than the apostrophe. The text before and after does not matter. No expression
looks behind its place, or looks ahead past a letter. NFC does not change such a place. A text may
be cut at these places, except within a special token. A rendered chat may also be cut between its
pieces. Texts of other tokenizers (SentencePiece: Llama 2, Mistral 7B) are not cut.

A cut does not depend on the text after the cut. Two texts of a tenant with the same beginning
therefore begin with the same chunks. With a memory, only new chunks are tokenised. The last chunk
of a text is not remembered, since a longer text has another chunk in its place.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gateway.errors import BadRequest
from gateway.processes.fair_executor import Steps
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.text_memory import KnownText, Owner, TextMemory, key_of
from gateway.prompts.tokens.tokenizer import Pipeline, TokenIds, Tokenizer

CHUNK = 1 << 14  # number of characters of a chunk, tokenised in some milliseconds
# number of characters of a remembered chunk; on average half a chunk is tokenised anew
KNOWN_CHUNK = 1 << 9
# number of remembered characters that take as long to look up as one character takes to tokenise
_FOUND = 16
LONGEST_RUN = 1 << 18  # maximum number of characters without a place to cut

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_AND_SLASHES = _REST.replace(r"+[\r\n]*", r"+[\r\n/]*")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def _by_case(short_forms: str, digits: str) -> str:
    """Write a pattern in which lower-case words end where an upper-case word begins."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{short_forms}|{before}{_UPPER}+{_LOWER}*{short_forms}"
    return rf"{words}|\p{{N}}{digits}{_REST_AND_SLASHES}"


_KNOWN = {
    # Llama 3, Qwen 2 and 3
    *(rf"{_SHORT_FORMS}|{_WORDS}|\p{{N}}{some}{_REST}" for some in ("{1,3}", "")),
    _by_case("", ""),  # Mistral since Nemo
    _by_case(f"{_SHORT_FORMS}?", "{1,3}"),  # gpt-oss
    # handbook, the demo model
    r"\p{N}|\p{Lu}+\p{Ll}*| ?[\p{Ll}\p{Lo}\p{Lm}\p{M}]+| ?[^\s\p{L}\p{N}]|\s",
}
# A character that every version of Unicode calls a letter or digit, then space or punctuation.
_PLACE = re.compile(
    r"[0-9A-Za-zÀ-ÖØ-öø-ÿΑ-ΡΣ-Ωα-ωА-Яа-яא-תء-غअ-हก-ะぁ-ゖァ-ヺ一-龥가-힣]"
    r"[\s.,;:!?()\[\]{}<>/\\|=+*&%$#@~^`\"\-。、，；：！？「」]"  # noqa: RUF001
)


class LongTexts:
    """The tokeniser of texts of any length."""

    def __init__(
        self, tokenizer: Tokenizer, memory: TextMemory | None = None, chunk: int | None = None
    ) -> None:
        """Remember chunks in `memory`, if given. A chunk has about `chunk` characters."""
        self._tokenizer = tokenizer
        self._memory = memory if memory is not None and memory.is_on else None
        self._chunk = chunk or (CHUNK if self._memory is None else KNOWN_CHUNK)
        self._added = [added.content for added in tokenizer.pipeline.added_tokens]
        self.can_cut = _splits_at_places(tokenizer.pipeline) and self._has_specials_in_front()

    def encode(
        self,
        text: str | Rendered,
        *,
        add_special_tokens: bool,
        most: int,
        owner: Owner | None = None,
        goes_on: bool = False,
    ) -> Steps[TokenIds | None]:
        """Encode `text` to the ids that `Tokenizer.encode` returns.

        Returns None for more than `most` ids, possibly before the whole text is encoded. Raises
        BadRequest for a long text without a place to cut. Without an `owner` nothing is remembered.
        If `goes_on`, known tokens follow the text. Its last chunk will then occur again, and is
        remembered too.
        """
        if not self.can_cut or (len(text) <= self._chunk and not goes_on):
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        found: list[TokenIds] = []
        at, worked = 0, 0
        for chunk in chunks_of(text, self._added, self._chunk):
            at += len(chunk)
            will_come_again = goes_on or at < len(text)
            special = add_special_tokens and not found
            ids, work = self._ids(chunk, owner if will_come_again else None, special=special)
            found.append(ids)
            most -= len(ids)
            if most < 0:
                return None
            worked += work
            if worked >= CHUNK:
                worked = 0
                yield
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _ids(
        self, chunk: str | Rendered, owner: Owner | None, *, special: bool
    ) -> tuple[TokenIds, int]:
        memory = self._memory
        if memory is None or owner is None:
            return self._tokenizer.encode(chunk, add_special_tokens=special), len(chunk)
        key = key_of(owner.namespace, chunk, special=special)
        known = memory.find(owner.tenant_id, key)
        if known is not None:
            memory.use(owner.tenant_id, key)
            return known.token_ids, 1 + len(chunk) // _FOUND
        ids = self._tokenizer.encode(chunk, add_special_tokens=special)
        memory.add(owner.tenant_id, key, KnownText(ids))
        return ids, len(chunk)

    def _has_specials_in_front(self) -> bool:
        """Return whether the tokenizer adds special tokens only before a text."""
        bare, whole = (
            self._tokenizer.encode("a", add_special_tokens=special).tolist()
            for special in (False, True)
        )
        return bool(whole[len(whole) - len(bare) :] == bare)


def chunks(text: str, uncut: Sequence[str] = (), size: int = CHUNK) -> Iterator[str]:
    """Cut `text` into pieces of about `size` characters, at safe places, never within `uncut`."""
    start = 0
    while len(text) - start > size:
        end = _place_after(text, start + size, uncut)
        if end is None:
            break
        yield text[start:end]
        start = end
    if len(text) - start > LONGEST_RUN:
        raise BadRequest(f"the prompt has {LONGEST_RUN} characters without a space or punctuation")
    yield text[start:]


def chunks_of(
    prompt: str | Rendered, uncut: Sequence[str], size: int = CHUNK
) -> Iterator[str | Rendered]:
    """Cut `prompt` into pieces of about `size` characters. Pieces of a chat end with a text."""
    if isinstance(prompt, str):
        yield from chunks(prompt, uncut, size)
        return
    gathered: list[str] = []  # a text, a control token, a text, ...
    length = 0
    for place, piece in enumerate(prompt.pieces):
        length += len(piece)
        if place % 2:
            gathered.append(piece)
            continue
        *heads, last = chunks(piece, uncut, size)
        for head in heads:
            yield Rendered((*gathered, head))
            gathered, length = [], len(last)
        gathered.append(last)
        if length > size:
            yield Rendered(tuple(gathered))
            gathered, length = [""], 0
    yield Rendered(tuple(gathered))


def _place_after(text: str, begin: int, uncut: Sequence[str]) -> int | None:
    """Find a place to cut at `begin` or soon after it, or return None."""
    reach = max(map(len, uncut), default=1) - 1
    for found in _PLACE.finditer(text, begin - 1, begin + LONGEST_RUN):
        place = found.start() + 1
        around = text[max(place - reach, 0) : place + reach]
        if not any(one in around for one in uncut):
            return place
    return None


def _splits_at_places(pipeline: Pipeline) -> bool:
    if pipeline.normalizer is not None and pipeline.normalizer.get("type") != "NFC":
        return False
    if any(
        one.single_word or one.lstrip or one.rstrip or (one.normalized and pipeline.normalizer)
        for one in pipeline.added_tokens
    ):
        return False
    return pipeline.is_plain_bpe and _splits(pipeline.pre_tokenizer or {})


def _splits(pre: dict[str, Any]) -> bool:
    """Return whether a known expression splits the text before it is converted to bytes."""
    if pre.get("type") == "ByteLevel":  # splits with GPT-2's expression
        return pre.get("use_regex", True) is True and not pre.get("add_prefix_space", True)
    parts = pre.get("pretokenizers", []) if pre.get("type") == "Sequence" else []
    if len(parts) != 2:
        return False
    split, to_bytes = parts
    return (
        split.get("type") == "Split"
        and split.get("pattern", {}).get("Regex") in _KNOWN
        and split.get("behavior") == "Isolated"
        and not split.get("invert", False)
        and to_bytes.get("type") == "ByteLevel"
        and not to_bytes.get("add_prefix_space", True)
        and to_bytes.get("use_regex", True) is False
    )
