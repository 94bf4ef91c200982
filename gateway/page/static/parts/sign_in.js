// Signing in with a key, which becomes a session's cookie: no script can read either of them.
import { html } from "../core/html.js";
import { Form, Input } from "./form.js";

/** `whose` names the key; `where` says where a person finds it. */
export function SignIn({ api, whose, where, done, ended }) {
  async function send({ key }) {
    await api.signIn(key.trim());
    done();
  }
  return html`<main class="sign-in" id="main">
    <h1><span class="brand">Ratoon</span></h1>
    ${ended && html`<p class="notice stale" role="status">The session has ended. Sign in again.</p>`}
    <${Form} send=${send} button="Sign in">
      <${Input} label=${whose} name="key" type="password" required autofocus autocomplete="current-password" hint=${where} />
    <//>
  </main>`;
}
