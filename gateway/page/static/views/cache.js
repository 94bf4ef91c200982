// The cache: each tier's fill by owner, whose blocks were evicted for whom, the tree, the prefixes.
import { html, useState } from "../core/html.js";
import { count, short, tenantName, time } from "../core/format.js";
import { Choice, Figures, Panel, ViewHead } from "../parts/panel.js";
import { Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { coloursOf, TierFill } from "../parts/fill.js";
import { PrefixRanking } from "./ranking.js";
import { Tree } from "./tree.js";

const TiersNote = () => html`Blocks by owner.
  <span class="marks"><b class="floor"></b>floor: what others cannot take</span>
  <span class="marks"><b class="ceiling"></b>ceiling: the most that an owner keeps</span>`;
const BY = [["pairs", "By tenants"], ["each", "One by one"]];

const STATES_NOTE = "States of recurrent layers that were kept. A prompt begins at one, and computes what it matches beyond";

export function Cache({ api, overview }) {
  return html`
    <${ViewHead} title="Cache" />
    <${Panel} title="Tiers" note=${html`<${TiersNote} />`}>
      <${Shown} live=${overview}>
        ${({ tiers }) => html`<div class="tiers">${tiers.map((tier) => html`<${TierFill} key=${tier.tier} tier=${tier} colours=${coloursOf(tiers)} />`)}</div>`}
      <//>
    <//>
    ${overview.data?.states?.total > 0 && html`<${Panel} title="Checkpoints" note=${STATES_NOTE}>
      <${Shown} live=${overview}>
        ${({ states }) => html`<${Figures} label="Checkpoints" of=${checkpointsOf(states)} />`}
      <//>
    <//>`}
    <div class="panels lists">
      <${Tree} api=${api} />
      <div class="stack">
        <${PrefixRanking} api=${api} />
        <${Evictions} overview=${overview} />
      </div>
    </div>
  `;
}

function checkpointsOf(states) {
  const sequences = states.total - states.free - states.checkpoints;
  return [
    { name: "Held", value: count(states.checkpoints), note: `of ${count(states.total)} slots, ${count(sequences)} of sequences` },
    ...Object.entries(states.lower).map(([tier, { used, total }]) => (
      { name: `Held: ${tier}`, value: count(used), note: `of ${count(total)}` })),
    { name: "Hits", value: count(states.hits), note: `${count(states.made)} made` },
    { name: "Evicted", value: count(states.evicted) },
    { name: "Refused", value: count(states.refused), note: "for lack of a slot" },
    { name: "Matched beyond", value: short(states.cut_tokens), note: "tokens computed again" },
  ];
}

function Evictions({ overview }) {
  const [way, setWay] = useState("pairs");
  return html`<${Panel}
    title="Evictions"
    note="The last evictions: whose blocks went, and for whose request"
    actions=${html`<${Choice} label="Evictions shown" options=${BY} chosen=${way} choose=${setWay} />`}
  >
    <${Shown} live=${overview}>
      ${({ evictions }) => html`<${Table}
        key=${way}
        label="Evictions"
        columns=${way === "pairs" ? PAIR_COLUMNS : EVICTION_COLUMNS}
        rows=${way === "pairs" ? pairsOf(evictions) : evictions}
        keyOf=${way === "pairs" ? pairKey : (one) => evictions.indexOf(one)}
        sorted=${way === "pairs" ? "Blocks" : "At"}
        empty="Nothing was evicted."
      />`}
    <//>
  <//>`;
}

function pairsOf(evictions) {
  const pairs = new Map();
  for (const one of evictions) {
    const key = pairKey(one);
    const pair = pairs.get(key) ?? { ...one, blocks: 0, times: 0, at: 0 };
    pair.blocks += one.blocks;
    pair.times += 1;
    pair.at = Math.max(pair.at, one.at);
    pairs.set(key, pair);
  }
  return [...pairs.values()];
}

const pairKey = ({ of, by, tier, reason }) => JSON.stringify([of.tenant, by.tenant, tier, reason]);

const nameOf = ({ tenant, name }) => tenantName(tenant, name);

const AT = { name: "At", by: ({ at }) => at, show: ({ at }) => time(at) };
const BLOCKS = { name: "Blocks", number: true, by: ({ blocks }) => blocks, show: ({ blocks }) => count(blocks) };
const WHOSE = [
  { name: "Whose", by: ({ of }) => nameOf(of), show: ({ of }) => nameOf(of) },
  { name: "For whom", by: ({ by }) => nameOf(by), show: ({ by }) => nameOf(by) },
  { name: "Tier", by: ({ tier }) => tier, show: ({ tier }) => tier },
  { name: "Reason", by: ({ reason }) => reason, show: ({ reason }) => reason },
];
const PAIR_COLUMNS = [
  ...WHOSE,
  BLOCKS,
  { name: "Times", number: true, by: ({ times }) => times, show: ({ times }) => count(times) },
  { ...AT, name: "Last" },
];
const EVICTION_COLUMNS = [AT, ...WHOSE, BLOCKS];
