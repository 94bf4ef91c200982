// Groups of tenants that share what is cached: made, renamed and deleted.
import { html, useState } from "../core/html.js";
import { count, date } from "../core/format.js";
import { Confirmed } from "../parts/confirm.js";
import { Dialog } from "../parts/dialog.js";
import { Form, Input } from "../parts/form.js";
import { Panel } from "../parts/panel.js";
import { Table } from "../parts/table.js";

export function Groups({ api, groups, tenants, changed }) {
  const [edited, setEdited] = useState(null); // a group, or {} for a new one
  const close = () => setEdited(null);
  const sizeOf = ({ id }) => tenants.filter(({ group_id: group }) => group === id).length;
  async function remove({ id }) {
    await api.remove(`/admin/groups/${id}`);
    changed();
  }
  const columns = [
    { name: "Name", by: ({ name }) => name, show: ({ name }) => name },
    { name: "Tenants", number: true, by: sizeOf, show: (group) => count(sizeOf(group)) },
    { name: "Made", by: ({ created_at: at }) => at, show: ({ created_at: at }) => date(at) },
    { name: "Id", show: ({ id }) => html`<code>${id}</code>` },
    {
      name: "Change",
      show: (group) => html`<span class="row-actions">
        <button type="button" class="quiet" aria-label=${`Rename ${group.name}`} onClick=${() => setEdited(group)}>Rename</button>
        <${Confirmed} label="Delete" name=${group.name} title=${`Delete the group ${group.name}?`} button="Delete group"
          warning="A group that still has tenants, or prefixes of its own, cannot be deleted." act=${() => remove(group)} />
      </span>`,
    },
  ];
  return html`
    <${Panel} title="Groups" note="Tenants of a group share what is cached. A tenant's group is set on its page."
      actions=${html`<button type="button" onClick=${() => setEdited({})}>New group</button>`}>
      <${Table} label="Groups" columns=${columns} rows=${groups} keyOf=${({ id }) => id} empty="There is no group." />
    <//>
    ${edited && html`<${GroupName} api=${api} group=${edited} close=${close} changed=${changed} />`}
  `;
}

function GroupName({ api, group, close, changed }) {
  const isNew = group.id === undefined;
  async function send({ name }) {
    if (isNew) await api.post("/admin/groups", { name });
    else await api.patch(`/admin/groups/${group.id}`, { name });
    changed();
    close();
  }
  return html`<${Dialog} title=${isNew ? "New group" : `Rename ${group.name}`} close=${close}>
    <${Form} send=${send} button=${isNew ? "Make group" : "Rename"} cancel=${close}>
      <${Input} label="Name" name="name" required maxlength="128" autofocus defaultValue=${group.name ?? ""} />
    <//>
  <//>`;
}
