"""The advice about each cause of a cache miss, for answers and for `ratoon lint`."""

ADVICE: dict[str, str] = {
    "billing_header": "Do not send this header (CLAUDE_CODE_ATTRIBUTION_HEADER=0 for Claude Code),"
    " send it to /v1/messages, which leaves it out, or ask the operator for canonical prompts.",
    "uuid": "Move ids out of what should stay, to the end of the last message.",
    "date": "Move the date to the last message, or round it to what may change, such as a day.",
    "time": "Move the time to the last message, or round it.",
    "epoch": "Move the time to the last message, or round it.",
    "random_id": "Move ids out of what should stay, to the end of the last message.",
    "number": "Move counters to the last message.",
    "reordered": "Always send tools in the same order.",
    "added": "Send the same tools in every request; `tool_choice` says which may be called.",
    "removed": "Send the same tools in every request; `tool_choice` says which may be called.",
    "reasoning_effort": "Ask for the same effort of reasoning in every request: the template writes"
    " it into the prompt.",
    "never_seen": "No recent prompt of yours begins like this one, under this salt and in this"
    " gateway process.",
    "previous_not_found": "The answer that was named is not remembered: too long ago, or another"
    " gateway process answered.",
    "unavailable": "The server remembers no prompts.",
    "model_changed": "The server computes with another model than it did then.",
    "salt_changed": "Requests share a cache only under the same `cache_salt`.",
    "group_changed": "The operator has changed with whom this tenant shares its cache.",
    "below_minimum": "A prompt is kept in whole blocks, and this one fills none.",
    "system_changed": "Put what changes after what stays.",
    "tools_changed": "Keep the definitions of tools as they are, key by key.",
    "messages_changed": "Append messages; do not edit earlier ones.",
    "template_changed": "The chat template writes something else here, such as the day or the"
    " effort of reasoning.",
    "evicted": "Most of this had not changed, but was no longer in the cache, or not yet. What is"
    " marked (`cache_control`) is evicted last.",
    "no_state": "Most of this was cached, but the model's recurrent layers had kept no state at its"
    " end. What is marked (`cache_control`) has one.",
    "expired": "Most of this had not changed, but the time for which it was marked had passed. Ask"
    " for a longer one, or send it again within that time.",
}
