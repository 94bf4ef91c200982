// The operator's page: signing in, the list of views, the one that is shown.
import { apiOf } from "./core/api.js";
import { html, show, useEffect, useRef } from "./core/html.js";
import { time } from "./core/format.js";
import { useLive } from "./core/live.js";
import { hrefOf, useRoute } from "./core/router.js";
import { joined } from "./core/samples.js";
import { SignedIn } from "./parts/signed_in.js";
import { Cache } from "./views/cache.js";
import { Health } from "./views/health.js";
import { Overview } from "./views/overview.js";
import { Prefixes } from "./views/prefixes.js";
import { Requests } from "./views/requests.js";
import { Tenant } from "./views/tenant.js";
import { Tenants } from "./views/tenants.js";

const OVERVIEW_MS = 5000;
const VIEWS = [
  ["", "Overview", Overview],
  ["cache", "Cache", Cache],
  ["requests", "Requests", Requests],
  ["tenants", "Tenants", Tenants],
  ["prefixes", "Prefixes", Prefixes],
  ["health", "Isolation and health", Health],
];

const api = apiOf("/admin/session");

function Page({ signOut }) {
  const [view, ...rest] = useRoute();
  const overview = useLive(overviewSince, OVERVIEW_MS);
  const main = useRef(null);
  const isFirst = useRef(true);
  const [name, title, View] = VIEWS.find(([known]) => known === view) ?? VIEWS[0];
  const Shown = name === "tenants" && rest[0] ? Tenant : View;

  useEffect(() => {
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    document.title = `${title} · Ratoon`;
    if (!isFirst.current) main.current.focus();
    isFirst.current = false;
    scrollTo(0, 0);
  }, [view, rest.join("/")]);

  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>To the content</a>
    <header class="top">
      <a class="brand" href=${hrefOf("")}>Ratoon</a>
      <nav aria-label="Views">
        ${VIEWS.map(([path, text]) => html`<a key=${path} href=${hrefOf(path)} aria-current=${path === name ? "page" : undefined}>${text}</a>`)}
      </nav>
      <div class="session">
        <${Pulse} live=${overview} />
        <button type="button" class="quiet" onClick=${signOut}>Sign out</button>
      </div>
    </header>
    <main id="main" ref=${main} tabindex="-1">
      <${Down} live=${overview} />
      <${Shown} key=${view} api=${api} overview=${overview} id=${rest[0]} />
    </main>
  `;
}

/** The overview with what is new since the last sample. */
async function overviewSince(signal, before) {
  const newest = before?.samples.at(-1)?.t;
  const path = newest === undefined ? "/admin/overview" : `/admin/overview?since=${newest}`;
  return joined(before, await api.get(path, signal));
}

function Pulse({ live: { at, error } }) {
  const kind = error ? "stale" : at ? "live" : "waiting";
  return html`<span class=${`pulse ${kind}`}>
    <i aria-hidden="true"></i>${kind === "waiting" ? "connecting" : `${kind}, ${at ? time(at / 1000) : "no data"}`}
  </span>`;
}

/** On every view: which processes are down, and whether answers from the cache were wrong. */
function Down({ live: { data } }) {
  const down = data?.health.filter(({ ok }) => !ok) ?? [];
  if (down.length === 0) return null;
  return html`<div class="notice bad" role="alert">
    ${down.map(({ process, since, detail, fault }) => html`<p key=${process}>
      <b>${process} ${fault}</b>${since ? ` since ${time(since)}` : ""}${detail ? `: ${detail}` : ""}
    </p>`)}
  </div>`;
}

show(html`<${SignedIn} api=${api} page=${Page} whose="Operator's key"
  where="RATOON_ADMIN_KEY of the server, or in keys.env in its data directory." />`);
