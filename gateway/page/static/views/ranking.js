// The hottest prefixes, and the most wasteful: those that take much room and are found seldom.
import { html, useState } from "../core/html.js";
import { useLive } from "../core/live.js";
import { Choice, Panel } from "../parts/panel.js";
import { Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Label, NODE_COLUMNS, ownerOf } from "./nodes.js";

const EVERY_MS = 10_000;
const LIMIT = 50;
const ORDERS = [["hot", "Hottest"], ["wasteful", "Most wasteful"]];
const NOTES = {
  hot: "Found most often",
  wasteful: "Much room for few hits",
};

export function PrefixRanking({ api }) {
  const [order, setOrder] = useState("hot");
  const path = `/admin/cache/prefixes?order=${order}&limit=${LIMIT}`;
  const live = useLive((signal) => api.get(path, signal), EVERY_MS, [path]);
  return html`<${Panel}
    title="Prefixes"
    note=${NOTES[order]}
    actions=${html`<${Choice} label="Order of prefixes" options=${ORDERS} chosen=${order} choose=${setOrder} />`}
  >
    <${Shown} live=${live}>
      ${({ prefixes, age_s: age }) => html`<${Table}
        label="Prefixes"
        columns=${COLUMNS}
        rows=${prefixes}
        keyOf=${({ node }) => node}
        empty=${age === null ? "The first look at the tree is under way." : "No prefix is cached."}
      />`}
    <//>
  <//>`;
}

const COLUMNS = [
  { name: "Prefix", show: (node) => html`<${Label} node=${node} />` },
  { name: "Owner", by: ownerOf, show: ownerOf },
  ...NODE_COLUMNS,
];
