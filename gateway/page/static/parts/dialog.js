// A dialog over the page: the browser keeps the focus inside, and gives it back at the end.
import { html, useEffect, useRef } from "../core/html.js";

/** Open as long as it is there; `close` is called by Escape and by its own button. */
export function Dialog({ title, close, children }) {
  const dialog = useRef(null);
  const opener = useRef(null);
  useEffect(() => {
    opener.current = document.activeElement;
    dialog.current.showModal();
    return () => opener.current?.isConnected && opener.current.focus();
  }, []);
  const cancelled = (event) => {
    event.preventDefault();
    close();
  };
  return html`<dialog ref=${dialog} onCancel=${cancelled} aria-labelledby="dialog-title">
    <header>
      <h2 id="dialog-title">${title}</h2>
      <button type="button" class="quiet" aria-label="Close" onClick=${close}>✕</button>
    </header>
    ${children}
  </dialog>`;
}
