// What stands where there is nothing to show: not yet, nothing, not now, or no longer current.
import { html } from "../core/html.js";
import { time } from "../core/format.js";

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** An error as a person reads it. */
export function Trouble({ error, again }) {
  return html`<div class="notice bad" role="alert">
    <p>${error.message}</p>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

/** `children(data)` of a `useLive` state, with what is wrong with it above. */
export function Shown({ live, children }) {
  const { data, error, at, again } = live;
  if (data === null) {
    return error === null ? html`<p class="empty" aria-busy="true">Loading…</p>` : html`<${Trouble} error=${error} again=${again} />`;
  }
  return html`
    ${error !== null && html`<p class="notice stale" role="status">
      ${error.message} This is from ${time(at / 1000)}.
    </p>`}
    <div class=${error === null ? "shown" : "shown is-stale"}>${children(data)}</div>
  `;
}

/** A word with a colour that says the same: good, bad, warn or plain. */
export function Mark({ kind = "plain", children }) {
  return html`<span class=${`mark ${kind}`}>${children}</span>`;
}
