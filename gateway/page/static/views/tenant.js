// One tenant: its figures, its keys, and everything of it that can be set.
import { html } from "../core/html.js";
import { useLive } from "../core/live.js";
import { count, date, percent } from "../core/format.js";
import { goTo, hrefOf } from "../core/router.js";
import { Confirmed } from "../parts/confirm.js";
import { Figures, Panel, ViewHead } from "../parts/panel.js";
import { Mark, Shown } from "../parts/states.js";
import { Keys } from "./keys.js";
import { CacheQuota, General, Limits } from "./tenant_forms.js";

const EVERY_MS = 5000; // the counters of all tenants take the engine some milliseconds

export function Tenant({ api, id }) {
  const path = `/admin/tenants/${encodeURIComponent(id)}`;
  const live = useLive((signal) => known(api, path, id, signal), EVERY_MS, [path]);
  async function change(fields) {
    await api.patch(path, fields);
    live.again();
  }
  return html`<${Shown} live=${live}>
    ${({ tenant, groups, used }) => html`
      <${ViewHead} title=${tenant.name} above=${html`<a href=${hrefOf("tenants")}>Tenants</a>`}
        note=${html`<code>${tenant.id}</code>, made ${date(tenant.created_at)}${tenant.disabled && html` <${Mark} kind="warn">disabled<//>`}`}
      >
        <${Ending} api=${api} path=${path} tenant=${tenant} changed=${live.again} />
      <//>
      <${Figures} label="Use since the engine started" of=${figuresOf(used)} />
      <${Keys} api=${api} tenant=${tenant} />
      <div class="panels forms" key=${id}>
        <${General} ...${{ tenant, groups, change }} />
        <${Limits} ...${{ tenant, change }} />
        <${CacheQuota} ...${{ tenant, change }} />
      </div>
    `}
  <//>`;
}

async function known(api, path, id, signal) {
  const [tenant, { groups }, cache] = await Promise.all([
    api.get(path, signal),
    api.get("/admin/groups", signal),
    api.get("/admin/cache/stats", signal).catch(() => null), // no engine: dashes in their place
  ]);
  return { tenant, groups, used: cache?.tenants.find((one) => one.id === id) ?? null };
}

function figuresOf(used) {
  return [
    { name: "Hit rate", value: percent(used?.hit_rate) },
    { name: "Requests", value: count(used?.requests) },
    { name: "Cached tokens", value: count(used?.hit_tokens) },
    { name: "Computed tokens", value: count(used?.computed_tokens) },
    { name: "Generated tokens", value: count(used?.generated_tokens) },
    { name: "Blocks held", value: count(used?.blocks_held) },
  ];
}

function Ending({ api, path, tenant, changed }) {
  const { name, disabled } = tenant;
  async function turn() {
    await api.post(`${path}/${disabled ? "enable" : "disable"}`);
    changed();
  }
  async function remove() {
    await api.remove(path);
    goTo("tenants");
  }
  return html`
    ${disabled
      ? html`<button type="button" onClick=${turn}>Enable</button>`
      : html`<${Confirmed} label="Disable" title=${`Disable ${name}?`} button="Disable tenant" act=${turn}
          warning="Its requests are refused, and what it has cached is forgotten. It can be enabled again." />`}
    <${Confirmed} label="Delete" title=${`Delete ${name}?`} button="Delete tenant" act=${remove}
      warning="Its keys end, and what it has cached is forgotten. This cannot be undone." />
  `;
}
