// A titled part of a view, and a figure with its name.
import { html } from "../core/html.js";

export function Panel({ title, note, actions, wide, children }) {
  const id = `panel-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return html`<section class=${wide ? "panel wide" : "panel"} aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${title}</h2>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${note && html`<p class="note">${note}</p>`}
    ${children}
  </section>`;
}

/** The head of a view: its title and its actions. */
export function ViewHead({ title, above, note, children }) {
  return html`<div class="view-head">
    <div>
      ${above && html`<p class="above">${above}</p>`}
      <h1>${title}</h1>
      ${note && html`<p class="note">${note}</p>`}
    </div>
    ${children && html`<div class="actions">${children}</div>`}
  </div>`;
}

/** Figures side by side: [{name, value, note}]. */
export function Figures({ label, of }) {
  return html`<dl class="figures" aria-label=${label}>
    ${of.map(
      ({ name, value, note }) => html`<div key=${name}>
        <dt>${name}</dt>
        <dd>${value}${note && html`<small>${note}</small>`}</dd>
      </div>`,
    )}
  </dl>`;
}

/** One choice of several, as buttons beside each other. */
export function Choice({ label, options, chosen, choose }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(
      ([value, text]) => html`<button
        key=${value}
        type="button"
        aria-pressed=${value === chosen ? "true" : "false"}
        onClick=${() => choose(value)}
      >
        ${text}
      </button>`,
    )}
  </div>`;
}
