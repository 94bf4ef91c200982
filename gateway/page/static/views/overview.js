// The overview: figures of the chosen span, and how they went over time.
import { html, useState } from "../core/html.js";
import { count, millis, percent, short, tenantName } from "../core/format.js";
import * as samplesOf from "../core/samples.js";
import { Choice, Figures, Panel, ViewHead } from "../parts/panel.js";
import { Plot } from "../parts/plot.js";
import { Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";

const SPANS = [[300, "5 min"], [900, "15 min"], [3600, "1 h"]];

export function Overview({ overview }) {
  const [span, setSpan] = useState(900);
  return html`
    <${ViewHead} title="Overview">
      <${Choice} label="Time shown" options=${SPANS} chosen=${span} choose=${setSpan} />
    <//>
    <${Shown} live=${overview}>${(data) => html`<${Span} data=${data} span=${span} />`}<//>
  `;
}

function Span({ data, span }) {
  const samples = samplesOf.within(data, span);
  const plot = { samples, span };
  const rate = (value) => (one) => value(one) / one.seconds;
  return html`
    <${Figures} label="Figures" of=${figuresOf(data, samples)} />
    <div class="panels">
      <${Panel} title="Hit rate by tier" note="Share of prompt tokens that were found in each tier">
        <${Plot} label="Hit rate by tier" ...${plot} series=${TIERS} format=${percent} stacked top=${1} />
      <//>
      <${Panel} title="Tokens a second" note="Of prompts: cached and computed; of answers: generated">
        <${Plot} label="Tokens a second" ...${plot} format=${short} series=${[
          { name: "cached", colour: "cached", value: rate(samplesOf.hitTokens) },
          { name: "computed", colour: "computed", value: rate((one) => one.computed_tokens) },
          { name: "generated", colour: "generated", value: rate((one) => one.generated_tokens) },
        ]} />
      <//>
      <${Panel} title="Time to first token" note=${`Of answers that began in each ${data.interval_s} s`}>
        <${Plot} label="Time to first token" ...${plot} series=${quantiles("ttft_ms")} format=${millis} />
      <//>
      <${Panel} title="Time between tokens" note="From one token of an answer to the next">
        <${Plot} label="Time between tokens" ...${plot} series=${quantiles("itl_ms")} format=${millis} />
      <//>
      <${Panel} title="Queue" note="Sequences that run, and that wait for room in a step">
        <${Plot} label="Queue" ...${plot} series=${QUEUE} format=${count} whole />
      <//>
      <${Panel} title="Loads against recomputes" note="Blocks in lower tiers that were copied up, and that were computed again">
        <${Plot} label="Loads against recomputes, blocks a second" ...${plot} format=${short} series=${[
          { name: "loaded/s", colour: "cached", value: rate((one) => one.loads_blocks) },
          { name: "recomputed/s", colour: "computed", value: rate((one) => one.recomputed_blocks) },
        ]} />
      <//>
    </div>
    <${Panel} title="Queue by tenant">
      <${Table} label="Queue by tenant" columns=${QUEUE_COLUMNS} rows=${data.queue}
        keyOf=${({ tenant }) => tenant} sorted="Waiting" empty="No tenant has requests now." />
    <//>
  `;
}

function figuresOf(data, samples) {
  const rate = (value) => samplesOf.perSecond(samples, value);
  const lastOf = (value) => samplesOf.lastKnown(samples, value);
  const now = data.samples.at(-1);
  return [
    {
      name: "Hit rate",
      value: percent(samplesOf.hitRate(samples)),
      note: `of ${short(samplesOf.sum(samples, samplesOf.promptTokens))} tokens`,
    },
    { name: "Cached tokens/s", value: short(rate(samplesOf.hitTokens)) },
    { name: "Computed tokens/s", value: short(rate((one) => one.computed_tokens)) },
    { name: "Generated tokens/s", value: short(rate((one) => one.generated_tokens)) },
    {
      name: "First token, p50",
      value: millis(lastOf((one) => one.ttft_ms?.p50)),
      note: `p99 ${millis(lastOf((one) => one.ttft_ms?.p99))}`,
    },
    {
      name: "Between tokens, p50",
      value: millis(lastOf((one) => one.itl_ms?.p50)),
      note: `p99 ${millis(lastOf((one) => one.itl_ms?.p99))}`,
    },
    {
      name: "Accepted a draft",
      value: short(samplesOf.acceptedPerDraft(samples, samplesOf.draftSources(samples))),
      note: samplesOf.draftSources(samples)
        .map((source) => `${source} ${short(samplesOf.acceptedPerDraft(samples, [source]))}`)
        .join(", "),
    },
    { name: "Running", value: count(now?.running), note: `${count(now?.waiting)} waiting` },
  ];
}

const TIERS = ["device", "host", "disk"].map((tier) => ({
  name: tier,
  colour: tier,
  value(sample) {
    const asked = samplesOf.promptTokens(sample);
    return asked === 0 ? null : sample.hit_tokens[tier] / asked;
  },
}));

const quantiles = (field) => [
  { name: "p50", colour: "cached", value: (one) => one[field]?.p50 },
  { name: "p99", colour: "computed", value: (one) => one[field]?.p99 },
];

const QUEUE = [
  { name: "running", colour: "cached", value: ({ running }) => running },
  { name: "waiting", colour: "computed", value: ({ waiting }) => waiting },
];

const QUEUE_COLUMNS = [
  { name: "Tenant", by: ({ tenant, name }) => tenantName(tenant, name), show: ({ tenant, name }) => tenantName(tenant, name) },
  { name: "Running", number: true, by: ({ running }) => running, show: ({ running }) => count(running) },
  { name: "Waiting", number: true, by: ({ waiting }) => waiting, show: ({ waiting }) => count(waiting) },
];
