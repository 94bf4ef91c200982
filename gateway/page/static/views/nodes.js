// Nodes of the tree as rows: what is the same in the tree itself and in the lists of prefixes.
import { html, useState } from "../core/html.js";
import { count, duration, tenantName } from "../core/format.js";
import { Dialog } from "../parts/dialog.js";
import { Mark } from "../parts/states.js";

/** Whose it is: a tenant's, or the operator's, who published it. */
export const ownerOf = ({ tenant, name, published }) =>
  published === null ? tenantName(tenant, name) : "(published)";

export const NODE_COLUMNS = [
  { name: "Tokens", number: true, by: ({ tokens }) => tokens, show: ({ tokens }) => count(tokens) },
  { name: "Blocks", number: true, by: ({ blocks }) => blocks, show: ({ blocks }) => count(blocks) },
  { name: "Tiers", show: ({ tiers }) => html`<${Tiers} tiers=${tiers} />` },
  { name: "Hits", number: true, by: ({ hits }) => hits, show: ({ hits }) => count(hits) },
  { name: "Last used", number: true, by: ({ last_used_s: s }) => -s, show: ({ last_used_s: s }) => (s === null ? "–" : `${duration(s)} ago`) },
];

/** The tiers in which a node has blocks, with how many where it is not all of them. */
function Tiers({ tiers }) {
  const held = Object.entries(tiers).filter(([, blocks]) => blocks > 0);
  if (held.length === 0) return "–";
  return html`<span class="tier-marks">
    ${held.map(([tier, blocks]) => html`<span key=${tier}>
      <i class="dot" style=${{ background: `var(--${tier})` }}></i>${tier} ${count(blocks)}
    </span>`)}
  </span>`;
}

/** A node's label; of a published prefix also its text, on request. */
export function Label({ node }) {
  const [open, setOpen] = useState(false);
  const title = node.label;
  return html`<span class="labelled"><span class="label" title=${title}>${title}</span>
    ${node.published && html`<${Mark} kind="good">published<//>`}
    ${node.text !== null && html`
      <button type="button" class="quiet" aria-label=${`Text of ${title}`} onClick=${() => setOpen(true)}>Text</button>`}
    </span>
    ${open && html`<${Dialog} title=${title} close=${() => setOpen(false)}>
      <pre class="text" tabindex="0">${node.text}</pre>
    <//>`}`;
}
