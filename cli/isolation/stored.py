"""The test of texts stored by name: module schemas, cached contents, conversation threads.

    The first tenant stores a text, and the other tenant knows its id. Then the other tenant tries:
    use      it uses the id: the answer must equal that for an unknown id
    list     it lists its own texts: the id must not be there
    delete   it deletes the id: the answer must equal that for an unknown id, and the first tenant
             must still be able to use the id

The control is the first tenant, which lists the id and finds the text in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cli.isolation.fixtures import TenantFixture
from cli.isolation.server import ServerUnderTest
from cli.isolation.verdict import Finding, Outcome, outcome_of
from cli.progress import progress_bar

_BLOCKS = 4  # number of whole KV blocks of a stored text
STORED = "stored by name"
_MORE = "Go on."
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredKind:
    """A kind of text that tenants store by name, with the paths and bodies of its requests."""

    name: str
    path: str  # path at which texts are stored and, with `own`, listed
    stored: Callable[[str, str], Body]  # makes the storing request's body, from model and text
    id_of: Callable[[Body], str]
    use: Callable[[str, str], tuple[str, Body]]  # makes path and body of a use, from model and id
    cached: Callable[[Body], int]
    # path of a stored text, if texts of this kind can be listed and deleted
    own: str | None = None


def _module(model: str, text: str) -> Body:
    del model
    return {"modules": [{"text": text}]}


def _with_module(model: str, schema_id: str) -> tuple[str, Body]:
    chat = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": _MORE}]}
    return "/v1/chat/completions", {**chat, "ratoon": {"modules": {"schema": schema_id}}}


def _contents(text: str) -> list[Body]:
    return [{"role": "user", "parts": [{"text": text}]}]


def _cached_content(model: str, text: str) -> Body:
    return {"model": f"models/{model}", "contents": _contents(text), "ttl": "600s"}


def _with_content(model: str, name: str) -> tuple[str, Body]:
    asked = {"contents": _contents(_MORE), "cachedContent": name}
    path = f"/v1beta/models/{model}:generateContent"
    return path, {**asked, "generationConfig": {"maxOutputTokens": 1}}


def _message(model: str, text: str, thread: Body) -> Body:
    turns = [{"role": "user", "content": text}]
    return {"model": model, "max_tokens": 1, "messages": turns, "thread": thread}


def _continued(model: str, message_id: str) -> tuple[str, Body]:
    thread = {"type": "continue", "previous_message_id": message_id}
    return "/v1/messages", _message(model, _MORE, thread)


KINDS = (
    StoredKind(
        "module",
        "/v1/modules",
        _module,
        lambda made: made["id"],
        _with_module,
        lambda answer: answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        own="/v1/modules/{id}",
    ),
    StoredKind(
        "cached content",
        "/v1beta/cachedContents",
        _cached_content,
        lambda made: made["name"],
        _with_content,
        lambda answer: answer["usageMetadata"].get("cachedContentTokenCount", 0),
        own="/v1beta/{id}",
    ),
    StoredKind(
        "thread",
        "/v1/messages",
        lambda model, text: _message(model, text, {"type": "create"}),
        lambda made: made["id"],
        _continued,
        lambda answer: answer["usage"]["cache_read_input_tokens"],
    ),
)


class StoredTest:
    """A test with two new tenants: the first stores texts, and the second has their ids."""

    def __init__(self, server: ServerUnderTest, first: TenantFixture, other: TenantFixture) -> None:
        self._server = server
        self._first = first.key
        self._other = other.key
        self._model = server.facts.model
        self._tokens = _BLOCKS * server.facts.block_size
        # A recurrent state is kept at the second request and reused at the third.
        self._times = 3 if server.facts.tier_states else 1

    async def run(self) -> list[Finding]:
        """Test each kind of stored text, and return a finding for each operation."""
        findings = list[Finding]()
        with progress_bar(STORED, len(KINDS)) as advance:
            for kind in KINDS:
                findings += await self._of(kind)
                advance(1)
        return findings

    async def _of(self, kind: StoredKind) -> list[Finding]:
        text = (await self._server.new_text(self._first, self._tokens)).text
        body = kind.stored(self._model, text)
        for _ in range(self._times):
            made, error = await self._server.answered("POST", kind.path, self._first, body)
        if made is None:
            return [_finding(kind, "use", outcome=Outcome.NOT_APPLICABLE, note=error)]
        own_id = kind.id_of(made)
        unknown = own_id[:-8] + "00000000"
        told = {"use": await self._told(kind, self._other, own_id, unknown)}
        listed = 0
        if kind.own is not None:
            theirs = await self._lists(kind, self._other, own_id)
            told["list"] = theirs
            told["deletion"] = await self._deletion(kind, own_id, unknown)
            listed = await self._lists(kind, self._first, own_id)
        # The first use of a prompt module computes the module, so its id is used twice. A second
        # use of a thread fails.
        cached = max([await self._cached(kind, self._first, own_id) for _ in range(2)])
        is_full = cached >= self._tokens and (listed or kind.own is None)
        return [
            _finding(
                kind,
                operation,
                outcome=outcome_of(self._tokens * is_told, 0, full=bool(is_full)),
                reused=self._tokens * is_told,
                control=f"{min(cached, self._tokens)} of {self._tokens}",
                control_full=bool(is_full),
            )
            for operation, is_told in told.items()
        ]

    async def _told(self, kind: StoredKind, key: str, own_id: str, unknown: str) -> bool:
        """Return whether the server treats the id differently from an unknown id."""
        answers = []
        for one in (own_id, unknown):
            path, body = kind.use(self._model, one)
            answers.append(await self._server.answered("POST", path, key, body))
        return answers[0][0] is not None or answers[0] != answers[1]

    async def _deletion(self, kind: StoredKind, own_id: str, unknown: str) -> bool:
        assert kind.own is not None
        paths = [kind.own.format(id=one) for one in (own_id, unknown)]
        told = [await self._server.answered("DELETE", path, self._other) for path in paths]
        return told[0][0] is not None or told[0] != told[1]

    async def _lists(self, kind: StoredKind, key: str, own_id: str) -> bool:
        listed, _ = await self._server.answered("GET", kind.path, key)
        return own_id in str(listed)

    async def _cached(self, kind: StoredKind, key: str, own_id: str) -> int:
        path, body = kind.use(self._model, own_id)
        answer, _ = await self._server.answered("POST", path, key, body)
        return 0 if answer is None else kind.cached(answer)


def _finding(
    kind: StoredKind,
    operation: str,
    *,
    outcome: Outcome,
    reused: int | None = None,
    control: str = "-",
    control_full: bool = False,
    note: str = "",
) -> Finding:
    return Finding(
        dimension=STORED,
        case=f"another's {kind.name}: {operation}",
        outcome=outcome,
        reused=reused,
        may_reuse=None if reused is None else 0,
        control=control,
        control_full=control_full,
        note=note,
    )
