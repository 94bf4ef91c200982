// A new key: shown once, in a dialog, with a button that copies it.
import { html, useRef, useState } from "../core/html.js";
import { Dialog } from "./dialog.js";

/** `issued` is the answer that made the key. */
export function NewKey({ issued, tenant, close }) {
  const command =
    `curl ${location.origin}/v1/models \\\n  -H "Authorization: Bearer ${issued.key}"`;
  return html`<${Dialog} title=${`A key for ${tenant}`} close=${close}>
    <p>This key is shown now and never again: Ratoon stores only its digest.</p>
    <${Copied} label="Key" text=${issued.key} />
    <details>
      <summary>Try it in a terminal</summary>
      <pre class="text">${command}</pre>
    </details>
    <div class="buttons"><button type="button" class="first" onClick=${close}>Done</button></div>
  <//>`;
}

/** A text that can be copied by a button, or by hand where the browser forbids it. */
export function Copied({ label, text }) {
  const [said, setSaid] = useState("");
  const box = useRef(null);
  async function copy() {
    box.current.select();
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Selected: copy it with the keyboard");
    }
  }
  return html`<div class="copied">
    <input ref=${box} class="code" readonly aria-label=${label} value=${text} />
    <button type="button" autofocus onClick=${copy}>Copy</button>
    <span role="status" class="done">${said}</span>
  </div>`;
}
