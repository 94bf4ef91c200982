// A page for whoever is signed in; until then the sign-in, or that nobody answers.
import { html } from "../core/html.js";
import { useSession } from "../core/session.js";
import { SignIn } from "./sign_in.js";
import { Trouble } from "./states.js";

/** `page` gets `signOut`; `whose` and `where` as of SignIn. */
export function SignedIn({ api, page: Page, whose, where }) {
  const { state, signedIn, signOut, retry } = useSession(api);
  if (state === "asking") return null;
  if (state === "in") return html`<${Page} signOut=${signOut} />`;
  if (state === "unreachable") {
    return html`<main class="sign-in" id="main">
      <h1><span class="brand">Ratoon</span></h1>
      <${Trouble} error=${{ message: "The gateway does not answer." }} again=${retry} />
    </main>`;
  }
  return html`<${SignIn} api=${api} done=${signedIn} ended=${state === "ended"} whose=${whose} where=${where} />`;
}
