// Tenants with what they use, making one, and the groups that tenants share in.
import { html, useState } from "../core/html.js";
import { useLive } from "../core/live.js";
import { count, percent } from "../core/format.js";
import { goTo, hrefOf } from "../core/router.js";
import { Dialog } from "../parts/dialog.js";
import { Form, Input, Select } from "../parts/form.js";
import { Panel, ViewHead } from "../parts/panel.js";
import { Mark, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Groups } from "./groups.js";
import { limitsOf, quotaOf } from "./settings_text.js";

const EVERY_MS = 5000;

export function Tenants({ api }) {
  const [making, setMaking] = useState(false);
  const live = useLive((signal) => known(api, signal), EVERY_MS);
  return html`
    <${ViewHead} title="Tenants">
      <button type="button" class="first" onClick=${() => setMaking(true)}>New tenant</button>
    <//>
    <${Shown} live=${live}>
      ${({ tenants, groups, noCache }) => html`
        ${noCache && html`<p class="notice stale" role="status">${noCache} Figures of the cache are missing.</p>`}
        <${Panel} title="All tenants">
          <${Table} label="All tenants" columns=${columnsOf(groups)} rows=${tenants}
            keyOf=${({ id }) => id} marked=${({ disabled }) => disabled}
            empty="There is no tenant yet. Make the first one." />
        <//>
        <${Groups} api=${api} groups=${groups} tenants=${tenants} changed=${live.again} />
        ${making && html`<${NewTenant} api=${api} groups=${groups} close=${() => setMaking(false)} />`}
      `}
    <//>
  `;
}

/** Tenants with their counters in the cache; without these where no engine answers. */
async function known(api, signal) {
  const [{ tenants }, { groups }, cache] = await Promise.all([
    api.get("/admin/tenants", signal),
    api.get("/admin/groups", signal),
    api.get("/admin/cache/stats", signal).catch((error) => ({ tenants: [], error })),
  ]);
  const used = new Map(cache.tenants.map((one) => [one.id, one]));
  return {
    tenants: tenants.map((tenant) => ({ ...tenant, used: used.get(tenant.id) ?? null })),
    groups,
    noCache: cache.error?.message ?? null,
  };
}

function NewTenant({ api, groups, close }) {
  async function send({ name, group_id: group }) {
    const made = await api.post("/admin/tenants", { name, group_id: group || null });
    close();
    goTo("tenants", made.id);
  }
  return html`<${Dialog} title="New tenant" close=${close}>
    <${Form} send=${send} button="Make tenant" cancel=${close}>
      <${Input} label="Name" name="name" required maxlength="128" autofocus />
      <${Select} label="Group" name="group_id" value="" options=${groupOptions(groups)}
        hint="Tenants of a group share what is cached." />
    <//>
  <//>`;
}

export const groupOptions = (groups) => [["", "none"], ...groups.map(({ id, name }) => [id, name])];

function columnsOf(groups) {
  const groupName = ({ group_id: group }) => groups.find(({ id }) => id === group)?.name ?? "–";
  return [
    {
      name: "Name",
      by: ({ name }) => name,
      show: ({ id, name, disabled }) => html`<a href=${hrefOf("tenants", id)}>${name}</a>${disabled && html` <${Mark} kind="warn">disabled<//>`}`,
    },
    { name: "Hit rate", number: true, by: ({ used }) => used?.hit_rate, show: ({ used }) => percent(used?.hit_rate) },
    { name: "Requests", number: true, by: ({ used }) => used?.requests, show: ({ used }) => count(used?.requests) },
    { name: "Prompt tokens", number: true, by: ({ used }) => used?.prompt_tokens, show: ({ used }) => count(used?.prompt_tokens) },
    { name: "Blocks held", number: true, by: ({ used }) => used?.blocks_held, show: ({ used }) => count(used?.blocks_held) },
    { name: "Weight", number: true, by: ({ weight }) => weight, show: ({ weight }) => weight },
    { name: "Priority", by: ({ priority }) => priority, show: ({ priority }) => priority },
    { name: "Group", by: groupName, show: groupName },
    { name: "Quota", show: ({ cache }) => quotaOf(cache) },
    { name: "Limits", wide: true, show: ({ limits }) => limitsOf(limits) },
  ];
}
