// What one tenant used and saved in the window, and its last misses with what to do about them.
import { html } from "../core/html.js";
import { count, duration, millis, percent, short, time } from "../core/format.js";
import { Figures, Panel, ViewHead } from "../parts/panel.js";
import { Plot } from "../parts/plot.js";
import { Table } from "../parts/table.js";
import { ADVICE, REASONS } from "./misses.js";
import { limitsOf } from "./settings_text.js";

export function Usage({ data }) {
  const { tenant, window_s: span, samples, misses, limits } = data;
  const plot = { samples, span };
  return html`
    <${ViewHead} title=${tenant.name} note=${`The last ${duration(span)}`} />
    <${Figures} label="Figures" of=${figuresOf(data)} />
    <div class="panels">
      <${Panel} title="Hit rate" note="Of each day: the share of your prompt tokens that the cache had">
        <${Plot} label="Hit rate" ...${plot} series=${RATE} format=${percent} top=${1} />
      <//>
      <${Panel} title="Tokens" note="Of each day: of prompts, cached and computed; of answers, generated">
        <${Plot} label="Tokens" ...${plot} series=${TOKENS} format=${short} />
      <//>
    </div>
    <${Panel} title="Why it missed" note="Since this page is open: prompts of which less was cached than could have been">
      <${Table} label="Why it missed" columns=${MISSES} rows=${misses} keyOf=${(one) => misses.indexOf(one)}
        sorted="At" empty="No prompt has missed in this time." />
    <//>
    <${Panel} title="Limits"><p>${limitsOf(limits)}</p><//>
  `;
}

function figuresOf(data) {
  return [
    { name: "Hit rate", value: percent(data.hit_rate) },
    { name: "Cached tokens", value: short(data.cached_tokens), note: `of ${short(data.prompt_tokens)} in prompts` },
    { name: "Computed tokens", value: short(data.computed_tokens) },
    { name: "Generated tokens", value: short(data.generated_tokens) },
    { name: "Requests", value: count(data.requests) },
    { name: "Saved time", value: data.saved_seconds === null ? "–" : millis(data.saved_seconds * 1000), note: "of computing prompts" },
  ];
}

const RATE = [{ name: "hit rate", colour: "cached", value: ({ prompt, cached }) => (prompt ? cached / prompt : null) }];
const TOKENS = [
  { name: "cached", colour: "cached", value: ({ cached }) => cached },
  { name: "computed", colour: "computed", value: ({ prompt, cached }) => prompt - cached },
  { name: "generated", colour: "generated", value: ({ generated }) => generated },
];

const MISSES = [
  { name: "At", by: ({ at }) => at, show: ({ at }) => time(at) },
  { name: "Why", by: ({ reason }) => reason, show: ({ reason }) => REASONS[reason] ?? reason },
  { name: "Tokens", number: true, by: ({ tokens }) => tokens, show: ({ tokens }) => count(tokens) },
  { name: "Cost", number: true, by: ({ ms }) => ms, show: ({ ms }) => millis(ms) },
  { name: "What to do", wide: true, show: ({ reason, advice }) => advice ?? ADVICE[reason] ?? "" },
  { name: "Request", show: ({ request_id: id }) => html`<code>${id}</code>` },
];
