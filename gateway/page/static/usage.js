// A tenant's own page: its hit rate, what the cache saved it, and why its prompts missed.
import { apiOf } from "./core/api.js";
import { html, show } from "./core/html.js";
import { time } from "./core/format.js";
import { useLive } from "./core/live.js";
import { SignedIn } from "./parts/signed_in.js";
import { Shown } from "./parts/states.js";
import { Usage } from "./views/usage.js";

const EVERY_MS = 5000;

const api = apiOf("/usage/session");

function Page({ signOut }) {
  const live = useLive((signal) => api.get("/usage/data", signal), EVERY_MS);
  return html`
    <header class="top">
      <span class="brand">Ratoon</span>
      <div class="session">
        <span class=${`pulse ${live.error ? "stale" : "live"}`}>
          <i aria-hidden="true"></i>${live.at ? `${live.error ? "stale" : "live"}, ${time(live.at / 1000)}` : "connecting"}
        </span>
        <button type="button" class="quiet" onClick=${signOut}>Sign out</button>
      </div>
    </header>
    <main id="main" tabindex="-1">
      <${Shown} live=${live}>${(data) => html`<${Usage} data=${data} />`}<//>
    </main>
  `;
}

show(html`<${SignedIn} api=${api} page=${Page} whose="Your API key"
  where="The one with which you send requests. This page only reads." />`);
