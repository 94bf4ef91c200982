// Forms: labelled fields, a button that waits for its answer, the error of what was refused.
import { html, useId, useState } from "../core/html.js";

/** One labelled field; `hint` says what may be in it. `children(attributes)` is the control. */
export function Field({ label, hint, children }) {
  const id = useId();
  const hintId = `${id}-hint`;
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children({ id, "aria-describedby": hint ? hintId : undefined })}
    ${hint && html`<p class="hint" id=${hintId}>${hint}</p>`}
  </div>`;
}

/** An input of a form; what is in it is read when the form is sent. */
export function Input({ label, hint, ...rest }) {
  return html`<${Field} label=${label} hint=${hint}>
    ${(given) => html`<input ...${given} autocomplete="off" ...${rest} />`}
  <//>`;
}

export function Select({ label, hint, options, value, ...rest }) {
  return html`<${Field} label=${label} hint=${hint}>
    ${(given) => html`<select ...${given} ...${rest}>
      ${options.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}
    </select>`}
  <//>`;
}

export function Check({ label, hint, ...rest }) {
  const id = useId();
  return html`<div class="field check">
    <input type="checkbox" id=${id} aria-describedby=${hint && `${id}-hint`} ...${rest} />
    <label for=${id}>${label}</label>
    ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
  </div>`;
}

/**
 * A form whose `send(values)` may be refused; then what was typed stays, with the reason.
 * `grave` marks what cannot be undone. `values` has the text of each named field, and true or false for those with a tick.
 */
export function Form({ send, button, done, children, cancel, grave }) {
  const { run, busy, error, finished } = useAction(send);
  const submitted = (event) => {
    event.preventDefault();
    run(valuesOf(event.currentTarget));
  };
  return html`<form onSubmit=${submitted}>
    ${children}
    ${error && html`<p class="notice bad" role="alert">${error.message}</p>`}
    <div class="buttons">
      <button type="submit" class=${grave ? "first grave" : "first"} disabled=${busy}>${busy ? "Sending…" : button}</button>
      ${cancel && html`<button type="button" onClick=${cancel}>Cancel</button>`}
      <span role="status" class="done">${finished && !busy ? done : ""}</span>
    </div>
  </form>`;
}

/** A call that a person started: whether it is under way, has ended, or was refused. */
export function useAction(call) {
  const [state, setState] = useState({ busy: false, error: null, finished: false });
  async function run(...given) {
    setState({ busy: true, error: null, finished: false });
    try {
      await call(...given);
      setState({ busy: false, error: null, finished: true });
    } catch (error) {
      setState({ busy: false, error, finished: false });
    }
  }
  return { run, ...state };
}

function valuesOf(form) {
  const named = [...form.elements].filter(({ name }) => name);
  return Object.fromEntries(
    named
      .filter(({ type, checked }) => type !== "radio" || checked)
      .map(({ name, type, checked, value }) => [name, type === "checkbox" ? checked : value]),
  );
}
