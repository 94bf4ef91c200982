// What views are written with: Preact's elements and hooks, in htm's notation.
import { h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export * from "../vendor/preact-hooks.js";
export const html = htm.bind(h);

/** `view` in place of what the page showed while it was loading. */
export function show(view) {
  const place = document.getElementById("app");
  place.replaceChildren();
  render(view, place);
}

