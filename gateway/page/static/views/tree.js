// The tree of prefixes as one walks it: namespaces first, and what follows a node when it is opened.
import { html, useState } from "../core/html.js";
import { useLive } from "../core/live.js";
import { count } from "../core/format.js";
import { Panel } from "../parts/panel.js";
import { Label, NODE_COLUMNS } from "./nodes.js";

const EVERY_MS = 10_000;
const WIDTH = NODE_COLUMNS.length + 1;

export function Tree({ api }) {
  return html`<${Panel}
    title="Tree"
    note="Namespaces by their tenant, and the prefixes in them. Only published prefixes have a text here."
  >
    <div class="scroll" role="region" aria-label="Tree of prefixes" tabindex="0">
      <table>
        <thead>
          <tr>
            <th scope="col">Prefix</th>
            ${NODE_COLUMNS.map(({ name, number }) => html`<th key=${name} scope="col" class=${number ? "number" : ""}>${name}</th>`)}
          </tr>
        </thead>
        <tbody><${Level} api=${api} node=${null} depth=${0} /></tbody>
      </table>
    </div>
  <//>`;
}

/** The children of a node, each a row, and below it its own children while it is open. */
function Level({ api, node, depth }) {
  const path = node === null ? "/admin/cache/tree" : `/admin/cache/tree?node=${encodeURIComponent(node)}`;
  const { data, error } = useLive((signal) => api.get(path, signal), EVERY_MS, [path]);
  if (data === null) return html`<${Line} depth=${depth}>${error?.message ?? "Loading…"}<//>`;
  return html`
    ${error && html`<${Line} depth=${depth}>${error.message} What follows is from before.<//>`}
    ${data.children.map((child) => html`<${Node} key=${child.node} api=${api} node=${child} depth=${depth} />`)}
    ${data.children.length === 0 && html`<${Line} depth=${depth}>Nothing is cached here.<//>`}
    ${Boolean(data.more) && html`<${Line} depth=${depth}>${count(data.more)} more are not shown.<//>`}
  `;
}

function Node({ api, node, depth }) {
  const [open, setOpen] = useState(false);
  return html`
    <tr>
      <td>
        <span class="branch" style=${{ paddingLeft: `${depth * 1.25}rem` }}>
          ${node.children
            ? html`<button type="button" class="turn" aria-expanded=${open ? "true" : "false"}
                aria-label=${`What follows ${node.label}`} onClick=${() => setOpen(!open)}>
                <span aria-hidden="true">${open ? "▾" : "▸"}</span>
              </button>`
            : html`<span class="turn" aria-hidden="true"></span>`}
          ${node.kind === "namespace"
            ? html`<b class="label" title=${node.label}>${node.label}</b>`
            : html`<${Label} node=${node} />`}
        </span>
      </td>
      ${NODE_COLUMNS.map(({ name: column, number, show }) => html`<td key=${column} class=${number ? "number" : ""}>${show(node)}</td>`)}
    </tr>
    ${open && html`<${Level} api=${api} node=${node.node} depth=${depth + 1} />`}
  `;
}

function Line({ depth, children }) {
  return html`<tr>
    <td colspan=${WIDTH} class="line">
      <span class="branch" style=${{ paddingLeft: `${depth * 1.25 + 1.75}rem` }}>${children}</span>
    </td>
  </tr>`;
}
