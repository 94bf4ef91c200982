// Requests under way, and those that were refused last, by reason. No prompt is shown.
import { html, useState } from "../core/html.js";
import { useLive } from "../core/live.js";
import { count, duration, NOT_KNOWN, tenantName, time } from "../core/format.js";
import { Panel, ViewHead } from "../parts/panel.js";
import { Mark, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";

const UNDER_WAY_MS = 2000;
const REFUSALS_MS = 5000;

export function Requests({ api }) {
  const running = useLive((signal) => api.get("/admin/requests", signal), UNDER_WAY_MS);
  const refused = useLive((signal) => api.get("/admin/refusals", signal), REFUSALS_MS);
  return html`
    <${ViewHead} title="Requests" />
    <${Panel} title="Under way" note="The oldest first">
      <${Shown} live=${running}>
        ${({ requests, total }) => html`
          <${Table} label="Requests under way" columns=${RUNNING} rows=${requests}
            keyOf=${({ request_id: id }) => id} empty="No request is under way." />
          ${total > requests.length && html`<p class="note">The ${count(requests.length)} oldest of ${count(total)}.</p>`}
        `}
      <//>
    <//>
    <${Panel} title="Last refusals">
      <${Shown} live=${refused}>${(found) => html`<${Refusals} ...${found} />`}<//>
    <//>
  `;
}

function Refusals({ refusals, by_code: counts }) {
  const [chosen, setChosen] = useState(null);
  const codes = Object.entries(counts).sort(([, a], [, b]) => b - a);
  const shown = chosen === null ? refusals : refusals.filter(({ code }) => code === chosen);
  return html`
    ${codes.length > 0 && html`<div class="chips" role="group" aria-label="Refusals by reason">
      ${codes.map(([code, times]) => html`<button
        key=${code} type="button" aria-pressed=${code === chosen ? "true" : "false"}
        onClick=${() => setChosen(code === chosen ? null : code)}
      >${code} <b>${count(times)}</b></button>`)}
    </div>`}
    <${Table} label="Last refusals" columns=${REFUSED} rows=${shown}
      keyOf=${(one) => refusals.indexOf(one)} sorted="At"
      empty=${chosen === null ? "Nothing was refused." : "None of the last refusals has this reason."} />
  `;
}

const TENANT = {
  name: "Tenant",
  by: ({ tenant, name }) => tenantName(tenant, name),
  show: ({ tenant, name }) => tenantName(tenant, name),
};
const ID = { name: "Request", show: ({ request_id: id }) => html`<code>${id}</code>` };
const number = (name, field) => ({ name, number: true, by: (row) => row[field], show: (row) => count(row[field]) });

const RUNNING = [
  { name: "Age", number: true, by: ({ age_s: age }) => age, show: ({ age_s: age }) => duration(age) },
  TENANT,
  { name: "State", by: ({ state }) => state, show: ({ state }) => state },
  number("Prompt", "prompt_tokens"),
  number("Cached", "cached_tokens"),
  number("Generated", "generated_tokens"),
  { name: "Route", show: ({ route }) => html`<code>${route ?? NOT_KNOWN}</code>` },
  { name: "Model", show: ({ model }) => model },
  ID,
];

const REFUSED = [
  { name: "At", by: ({ at }) => at, show: ({ at }) => time(at) },
  { name: "Reason", by: ({ code }) => code, show: ({ code, status }) => html`<${Mark} kind=${status >= 500 ? "bad" : "warn"}>${status}<//> ${code}` },
  TENANT,
  { name: "Message", wide: true, show: ({ message }) => message },
  { name: "Route", show: ({ route }) => html`<code>${route}</code>` },
  ID,
];
