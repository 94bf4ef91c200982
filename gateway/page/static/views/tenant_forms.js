// What can be set of a tenant: name and turn in the queue, limits, cache quota.
import { html } from "../core/html.js";
import { Check, Form, Input, Select } from "../parts/form.js";
import { Panel } from "../parts/panel.js";
import { groupOptions } from "./tenants.js";

const PRIORITIES = [["interactive", "interactive"], ["batch", "batch"]];
const PERIODS = [["month", "each month"], ["total", "ever"]];

/** An empty field is no limit. */
const numberOf = (text) => (text.trim() === "" ? null : Number(text));

export function General({ tenant, groups, change }) {
  const send = (given) =>
    change({
      name: given.name,
      weight: Number(given.weight),
      priority: given.priority,
      target_itl_ms: Number(given.target_itl_ms),
      group_id: given.group_id || null,
      usage_tiers: given.usage_tiers,
      canonical_prompts: given.canonical_prompts,
    });
  return html`<${Panel} title="Settings">
    <${Form} send=${send} button="Save settings" done="Saved">
      <${Input} label="Name" name="name" required maxlength="128" defaultValue=${tenant.name} />
      <${Input} label="Weight" name="weight" type="number" min="0.001" max="1000" step="any" required
        defaultValue=${tenant.weight} hint="Its share of the engine while several tenants wait." />
      <${Select} label="Priority" name="priority" value=${tenant.priority} options=${PRIORITIES} />
      <${Input} label="Target between tokens, ms" name="target_itl_ms" type="number" min="0" max="60000" step="any" required
        defaultValue=${tenant.target_itl_ms} hint="0: the server's own, if it has one." />
      <${Select} label="Group" name="group_id" value=${tenant.group_id ?? ""} options=${groupOptions(groups)} />
      <${Check} label="Usage says in which tiers cached tokens lay" name="usage_tiers" defaultChecked=${tenant.usage_tiers} />
      <${Check} label="Prompts without what varies and means nothing" name="canonical_prompts" defaultChecked=${tenant.canonical_prompts} />
    <//>
  <//>`;
}

export function Limits({ tenant, change }) {
  const { limits } = tenant;
  function send(given) {
    const units = numberOf(given.units);
    const named = {
      ...limits, // those without a field below stay as they are
      requests_per_minute: numberOf(given.requests_per_minute),
      tokens_per_minute: numberOf(given.tokens_per_minute),
      max_concurrent: numberOf(given.max_concurrent),
      max_request_tokens: numberOf(given.max_request_tokens),
      burst_s: numberOf(given.burst_s),
      budget: units === null ? null : { units, period: given.period },
    };
    return change({ limits: named });
  }
  const rate = { type: "number", min: "1", step: "1", inputmode: "numeric" };
  return html`<${Panel} title="Limits" note="An empty field is no limit.">
    <${Form} send=${send} button="Save limits" done="Saved">
      <${Input} label="Requests a minute" name="requests_per_minute" ...${rate} defaultValue=${limits.requests_per_minute ?? ""} />
      <${Input} label="Tokens a minute" name="tokens_per_minute" ...${rate} defaultValue=${limits.tokens_per_minute ?? ""}
        hint="Computed and generated ones; cached tokens do not count." />
      <${Input} label="Requests at once" name="max_concurrent" ...${rate} defaultValue=${limits.max_concurrent ?? ""} />
      <${Input} label="Tokens of one request" name="max_request_tokens" ...${rate} defaultValue=${limits.max_request_tokens ?? ""}
        hint="Prompt and answer together." />
      <${Input} label="Burst, in seconds of the rate" name="burst_s" type="number" min="0.1" max="60" step="any"
        defaultValue=${limits.burst_s ?? ""} hint="60 if it is empty." />
      <div class="pair">
        <${Input} label="Budget, in units" name="units" type="number" min="0" step="any" defaultValue=${limits.budget?.units ?? ""} />
        <${Select} label="Period of the budget" name="period" value=${limits.budget?.period ?? "month"} options=${PERIODS} />
      </div>
    <//>
  <//>`;
}

export function CacheQuota({ tenant, change }) {
  const { floor = 0, ceiling = 1 } = tenant.cache;
  const send = (given) => change({ cache: { floor: given.floor / 100, ceiling: given.ceiling / 100 } });
  const share = { type: "number", min: "0", max: "100", step: "any", required: true };
  return html`<${Panel} title="Cache quota" note="Shares of every tier. No quota is 0 to 100 %.">
    <${Form} send=${send} button="Save quota" done="Saved">
      <${Input} label="Floor, %" name="floor" ...${share} defaultValue=${hundredth(floor)} hint="What other tenants cannot take from it." />
      <${Input} label="Ceiling, %" name="ceiling" ...${share} defaultValue=${hundredth(ceiling)} hint="The most that it keeps." />
    <//>
  <//>`;
}

const hundredth = (value) => Number((value * 100).toFixed(4));
