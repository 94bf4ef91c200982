"""The part of a prompt that an adapter computes, and the namespaces of the prompt's KV blocks.

    adapter                  prompt computed by     namespaces of its blocks
    an adapter               the adapter            the adapter's namespace, none published
    an activated adapter     the model | adapter    the model's namespaces | the adapter's

The last invocation tokens in the prompt switch an activated adapter on (aLoRA,
https://arxiv.org/abs/2504.12397). The model alone computes the blocks before the block with these
tokens. The model and all activated adapters share these earlier blocks.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from engine.link.messages import AdapterUse, Welcome
from gateway.caller import Caller
from gateway.errors import BadRequest
from gateway.prompts.generation_request import GenerationRequest
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.sharing.namespaces import Namespaces
from gateway.tenant_adapters import TenantAdapter
from prefix_cache.namespace import Namespace, NamespacePath, adapted_fingerprint


def with_adapter(welcome: Welcome, adapter: TenantAdapter | None) -> Welcome:
    """Return the engine's limits. Their fingerprint includes an adapter of whole prompts."""
    if adapter is None or adapter.invocation:
        return welcome
    fingerprint = adapted_fingerprint(welcome.fingerprint, bytes.fromhex(adapter.digest))
    return msgspec.structs.replace(welcome, fingerprint=fingerprint)


def used_adapter(wanted: GenerationRequest, token_ids: TokenIds) -> AdapterUse | None:
    """Return a prompt's adapter and the first position that it computes; None: the model alone.

    Raises BadRequest for an answered prompt without invocation tokens of the adapter.
    """
    adapter = wanted.adapter
    if adapter is None:
        return None
    start = _last_place(adapter.invocation, token_ids) if adapter.invocation else 0
    if start is not None:
        return adapter.use(start)
    if wanted.has_output or wanted.embeds or wanted.candidates:
        raise BadRequest(
            f"the prompt has none of the invocation tokens of the adapter {adapter.name}, which is "
            "activated by them",
            code="adapter_not_invoked",
            param="model",
        )
    # not answered: a longer prompt that begins with this prompt may invoke the adapter later
    return None


def path_of(
    own: Namespace,
    token_ids: TokenIds,
    wanted: GenerationRequest,
    used: AdapterUse | None,
    caller: Caller,
    welcome: Welcome,
    namespaces: Namespaces,
) -> NamespacePath:
    """Derive the namespaces along a prompt of `caller`, whose own namespace is `own`.

    A prompt that an adapter computes whole has no published namespace, since no prefix is pinned
    for an adapter. Otherwise a tenant's requests could compute blocks that another tenant finds.
    """
    adapter = wanted.adapter
    if adapter is not None and not adapter.invocation:
        return NamespacePath.single(own)
    size = welcome.block_size
    path = namespaces.path_to(own, caller, token_ids, welcome.fingerprint, size)
    if used is None:
        return path
    block = used.start // size
    if welcome.has_states and path.spans[-1][0] > block:
        # otherwise a published block would hold the recurrent state at the switch to the adapter
        path = NamespacePath.single(own)
    fingerprint = adapted_fingerprint(welcome.fingerprint, used.digest, used.start)
    return path.until(block, namespaces.own(caller, wanted.salt, fingerprint))


def _last_place(wanted: Sequence[int], token_ids: TokenIds) -> int | None:
    """Return the last position at which the given tokens begin, or None."""
    count = len(token_ids) - len(wanted) + 1
    if count <= 0:
        return None
    is_there = np.ones(count, np.bool_)
    for place, token_id in enumerate(wanted):
        is_there &= token_ids[place : place + count] == token_id
    places = is_there.nonzero()[0]
    return int(places[-1]) if len(places) else None
