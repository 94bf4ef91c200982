// A button whose action cannot be undone: it asks first, and says what will be gone.
import { html, useState } from "../core/html.js";
import { Dialog } from "./dialog.js";
import { Form } from "./form.js";

/** `act()` once the person has confirmed; `warning` says what that ends. */
export function Confirmed({ label, title, warning, button, act, name }) {
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  async function send() {
    await act();
    close();
  }
  return html`
    <button type="button" class="grave" aria-label=${name && `${label} ${name}`} onClick=${() => setOpen(true)}>
      ${label}
    </button>
    ${open && html`<${Dialog} title=${title} close=${close}>
      <p>${warning}</p>
      <${Form} send=${send} button=${button ?? label} cancel=${close} grave />
    <//>`}
  `;
}
