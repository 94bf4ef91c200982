// Published prefixes: the list, publishing one, its text, withdrawing it.
import { html, useState } from "../core/html.js";
import { useLive } from "../core/live.js";
import { count, date } from "../core/format.js";
import { Confirmed } from "../parts/confirm.js";
import { Dialog } from "../parts/dialog.js";
import { Panel, ViewHead } from "../parts/panel.js";
import { Mark, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Publish } from "./publish.js";

const EVERY_MS = 5000;
const MARKS = { warm: "good", warming: "warn", refused: "bad", "no engine": "bad" };

export function Prefixes({ api }) {
  const [publishing, setPublishing] = useState(false);
  const [read, setRead] = useState(null); // the prefix whose text is shown
  const live = useLive((signal) => known(api, signal), EVERY_MS);
  async function withdraw({ id }) {
    await api.remove(`/admin/prefixes/${id}`);
    live.again();
  }
  return html`
    <${ViewHead} title="Published prefixes" note="Computed once, kept in the cache, shared by all tenants or by a group.">
      <button type="button" class="first" onClick=${() => setPublishing(true)}>Publish a prefix</button>
    <//>
    <${Shown} live=${live}>
      ${({ prefixes, groups }) => html`
        <${Panel} title="In force">
          <${Table} label="Published prefixes" columns=${columnsOf(groups, setRead, withdraw)} rows=${prefixes}
            keyOf=${({ id }) => id} empty="Nothing is published yet." />
        <//>
        ${read && html`<${Text} api=${api} prefix=${read} close=${() => setRead(null)} />`}
        ${publishing && html`<${Publish} api=${api} groups=${groups} done=${live.again} close=${() => setPublishing(false)} />`}
      `}
    <//>
  `;
}

async function known(api, signal) {
  const [{ prefixes }, { groups }] = await Promise.all([
    api.get("/admin/prefixes", signal),
    api.get("/admin/groups", signal),
  ]);
  return { prefixes, groups };
}

/** What was published: a text, one system message, or a chat as JSON. */
function Text({ api, prefix, close }) {
  const live = useLive(async (signal) => (await api.get(`/admin/prefixes/${prefix.id}`, signal)).source, EVERY_MS);
  return html`<${Dialog} title=${`${prefix.name}, version ${prefix.version}`} close=${close}>
    <${Shown} live=${live}>${(source) => html`<pre class="text" tabindex="0">${textOf(source)}</pre>`}<//>
  <//>`;
}

function textOf({ text, messages, tools }) {
  if (text !== null) return text;
  const [first, ...others] = messages ?? [];
  const isOneText = first?.role === "system" && typeof first.content === "string";
  if (isOneText && others.length === 0 && tools === null) return first.content;
  return JSON.stringify({ ...(messages && { messages }), ...(tools && { tools }) }, null, 2);
}

function columnsOf(groups, read, withdraw) {
  const scopeOf = ({ scope }) => (scope === "all" ? "all tenants" : groups.find(({ id }) => id === scope)?.name ?? scope);
  return [
    { name: "Name", by: ({ name }) => name, show: ({ name }) => name },
    { name: "Version", number: true, by: ({ version }) => version, show: ({ version }) => version },
    {
      name: "State",
      by: ({ state }) => state,
      show: ({ state, reason }) => html`<${Mark} kind=${MARKS[state]}>${state}<//>${reason && html` ${reason}`}`,
    },
    { name: "For", by: scopeOf, show: scopeOf },
    { name: "Tokens", number: true, by: ({ tokens }) => tokens, show: ({ tokens }) => count(tokens) },
    { name: "Blocks", number: true, by: ({ blocks }) => blocks, show: ({ blocks }) => count(blocks) },
    { name: "Published", by: ({ created_at: at }) => at, show: ({ created_at: at }) => date(at) },
    { name: "Id", show: ({ id }) => html`<code>${id}</code>` },
    {
      name: "Change",
      show: (one) => html`<span class="row-actions">
        <button type="button" class="quiet" aria-label=${`Text of ${one.name}`} onClick=${() => read(one)}>Text</button>
        <${Confirmed} label="Withdraw" name=${one.name} title=${`Withdraw ${one.name}?`} button="Withdraw prefix"
        warning="It is no longer kept for anyone. Requests that begin with it go on, and compute it for themselves." act=${() => withdraw(one)} />
      </span>`,
    },
  ];
}
