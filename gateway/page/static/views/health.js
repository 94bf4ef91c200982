// Health of each process, and the last report of `ratoon verify-isolation`.
import { html } from "../core/html.js";
import { count, time } from "../core/format.js";
import { Panel, ViewHead } from "../parts/panel.js";
import { Empty, Mark, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";

export function Health({ overview }) {
  return html`
    <${ViewHead} title="Isolation and health" />
    <${Panel} title="Processes">
      <${Shown} live=${overview}>
        ${({ health }) => html`<${Table} label="Processes" columns=${PROCESSES} rows=${health}
          keyOf=${({ process }) => process} empty="No process is known." />`}
      <//>
    <//>
    <${Panel} title="Last isolation report">
      <${Shown} live=${overview}>${({ isolation }) => html`<${Isolation} told=${isolation} />`}<//>
    <//>
  `;
}

const VERDICTS = { passed: "good", leaks: "bad" };

const PROCESSES = [
  { name: "Process", by: ({ process }) => process, show: ({ process }) => process },
  { name: "State", show: ({ ok, fault }) => html`<${Mark} kind=${ok ? "good" : "bad"}>${ok ? "up" : fault.replace("is ", "")}<//>` },
  { name: "Since", by: ({ since }) => since, show: ({ since }) => time(since) },
  { name: "Detail", wide: true, show: ({ detail }) => detail },
];

function Isolation({ told }) {
  if (!told) {
    return html`<${Empty}>No report yet. <code>ratoon verify-isolation</code> makes one and hands it in.<//>`;
  }
  return html`
    <p class="verdict"><${Mark} kind=${VERDICTS[told.verdict] ?? "warn"}>${told.verdict}<//>
      <span class="note">${time(told.at)}, ${count(told.samples)} samples</span></p>
    <pre class="text" tabindex="0">${typeof told.report === "string" ? told.report : JSON.stringify(told.report, null, 2)}</pre>
  `;
}
