// The reasons of misses in words, and what helps against them.

export const REASONS = {
  none: "nothing was lost",
  never_seen: "new prompt",
  previous_not_found: "the earlier answer is not remembered",
  unavailable: "no prompts are remembered",
  model_changed: "another model",
  salt_changed: "another cache_salt",
  group_changed: "another group",
  below_minimum: "shorter than a block",
  tools_changed: "the tools changed",
  system_changed: "the system message changed",
  messages_changed: "earlier messages changed",
  template_changed: "the template wrote something else",
  evicted: "no longer in the cache",
  no_state: "cached, but without a state of the recurrent layers",
};

export const ADVICE = {
  never_seen: "Nothing: the next prompt that begins like it can hit.",
  salt_changed: "Requests share a cache only under the same cache_salt.",
  below_minimum: "Nothing: a prompt is kept in whole blocks.",
  tools_changed: "Keep the definitions of tools as they are, and in their order.",
  system_changed: "Put what changes after what stays.",
  messages_changed: "Append messages; do not edit earlier ones.",
  evicted: "Most of this had not changed: ask the operator for more of the cache.",
};
