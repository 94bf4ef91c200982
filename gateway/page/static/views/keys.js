// A tenant's keys: issued, rotated, revoked. A key itself is seen once, when it is issued.
import { html, useState } from "../core/html.js";
import { useLive } from "../core/live.js";
import { date, time } from "../core/format.js";
import { Confirmed } from "../parts/confirm.js";
import { Dialog } from "../parts/dialog.js";
import { Form, Input, Select } from "../parts/form.js";
import { Panel } from "../parts/panel.js";
import { NewKey } from "../parts/secret.js";
import { Mark, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";

const EVERY_MS = 10_000;
const OVERLAPS = [["0", "at once"], ["3600", "in an hour"], ["86400", "in a day"], ["604800", "in a week"]];

export function Keys({ api, tenant }) {
  const path = `/admin/tenants/${tenant.id}/keys`;
  const live = useLive((signal) => api.get(path, signal), EVERY_MS, [path]);
  const [asked, setAsked] = useState(null); // {key} to rotate it, {} for a new one
  const [issued, setIssued] = useState(null);
  const close = () => setAsked(null);

  function came(answer) {
    setAsked(null);
    setIssued(answer);
    live.again();
  }
  async function revoke({ id }) {
    await api.remove(`${path}/${id}`);
    live.again();
  }
  const columns = [
    { name: "Key", show: ({ hint }) => html`<code>${hint}</code>` },
    { name: "State", show: (key) => html`<${State} ...${key} />` },
    { name: "Made", by: ({ created_at: at }) => at, show: ({ created_at: at }) => date(at) },
    { name: "Ends", by: ({ expires_at: at }) => at, show: ({ expires_at: at }) => (at === null ? "never" : time(at)) },
    { name: "Id", show: ({ id }) => html`<code>${id}</code>` },
    {
      name: "Change",
      show: (key) => key.live && html`<span class="row-actions">
        <button type="button" class="quiet" aria-label=${`Rotate ${key.hint}`} onClick=${() => setAsked({ key })}>Rotate</button>
        <${Confirmed} label="Revoke" name=${key.hint} title="Revoke this key?" button="Revoke key" act=${() => revoke(key)}
          warning=${`Requests with ${key.hint} are refused from now on, and its streams end.`} />
      </span>`,
    },
  ];
  return html`
    <${Panel} title="Keys" actions=${html`<button type="button" class="first" onClick=${() => setAsked({})}>New key</button>`}>
      <${Shown} live=${live}>
        ${({ keys }) => html`<${Table} label="Keys" columns=${columns} rows=${keys} keyOf=${({ id }) => id}
          sorted="Made" marked=${({ live: isLive }) => !isLive} empty="No key yet: without one it can ask for nothing." />`}
      <//>
    <//>
    ${asked && (asked.key
      ? html`<${Rotate} ...${{ api, path, came, close }} old=${asked.key} />`
      : html`<${Issue} ...${{ api, path, came, close }} />`)}
    ${issued && html`<${NewKey} issued=${issued} tenant=${tenant.name} close=${() => setIssued(null)} />`}
  `;
}

function State({ live, revoked_at: revoked }) {
  if (live) return html`<${Mark} kind="good">live<//>`;
  return html`<${Mark}>${revoked === null ? "ended" : "revoked"}<//>`;
}

function Issue({ api, path, came, close }) {
  async function send({ days }) {
    const ends = days.trim() === "" ? null : Date.now() / 1000 + Number(days) * 86400;
    came(await api.post(path, { expires_at: ends }));
  }
  return html`<${Dialog} title="New key" close=${close}>
    <${Form} send=${send} button="Make key" cancel=${close}>
      <${Input} label="Days until it ends" name="days" type="number" min="0.01" max="36500" step="any" hint="Empty: never." />
    <//>
  <//>`;
}

function Rotate({ api, path, old, came, close }) {
  const send = async ({ overlap }) =>
    came(await api.post(`${path}/${old.id}/rotate`, { overlap_s: Number(overlap) }));
  return html`<${Dialog} title="Rotate a key" close=${close}>
    <p>A new key is made, and <code>${old.hint}</code> ends.</p>
    <${Form} send=${send} button="Rotate key" cancel=${close}>
      <${Select} label="The old key ends" name="overlap" value="0" options=${OVERLAPS} />
    <//>
  <//>`;
}
