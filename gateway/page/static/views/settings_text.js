// A tenant's limits and quota in a line each.
import { count, percent } from "../core/format.js";

export function limitsOf(limits) {
  const { requests_per_minute: requests, tokens_per_minute: tokens, max_concurrent: most, max_request_tokens: size, budget } = limits;
  const parts = [
    requests && `${count(requests)} requests/min`,
    tokens && `${count(tokens)} tokens/min`,
    most && `${count(most)} at once`,
    size && `${count(size)} tokens/request`,
    budget && `${count(budget.units)} units${budget.period === "month" ? "/month" : ""}`,
  ];
  return parts.filter(Boolean).join(", ") || "unlimited";
}

export function quotaOf({ floor = 0, ceiling = 1 }) {
  return floor === 0 && ceiling === 1 ? "none" : `${percent(floor)} to ${percent(ceiling)}`;
}
