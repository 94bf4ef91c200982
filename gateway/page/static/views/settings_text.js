// A tenant's limits and quota in a line each.
import { count, percent } from "../core/format.js";

export function limitsOf({ requests_per_minute: requests, tokens_per_minute: tokens, max_concurrent: most, budget }) {
  const parts = [
    requests && `${count(requests)} requests/min`,
    tokens && `${count(tokens)} tokens/min`,
    most && `${count(most)} at once`,
    budget && `${count(budget.units)} units${budget.period === "month" ? "/month" : ""}`,
  ];
  return parts.filter(Boolean).join(", ") || "unlimited";
}

export function quotaOf({ floor = 0, ceiling = 1 }) {
  return floor === 0 && ceiling === 1 ? "none" : `${percent(floor)} to ${percent(ceiling)}`;
}
