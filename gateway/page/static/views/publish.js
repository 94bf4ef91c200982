// Publishing a prefix: a system message, a bare text, or the messages and tools of a chat as JSON.
import { html, useState } from "../core/html.js";
import { ApiError } from "../core/api.js";
import { Dialog } from "../parts/dialog.js";
import { Field, Form, Input, Select } from "../parts/form.js";

const KINDS = [
  ["system", "a system message"],
  ["text", "a text, for completions"],
  ["chat", "messages and tools, as JSON"],
];
const HINTS = {
  system: "Exactly as clients send it, in the first message of a chat.",
  text: "Exactly as prompts begin, token by token.",
  chat: 'An object with `messages`, `tools` or both, such as {"messages": [{"role": "system", "content": "…"}]}.',
};

export function Publish({ api, groups, done, close }) {
  const [kind, setKind] = useState("system");
  async function send({ name, scope, content }) {
    await api.post("/admin/prefixes", { name, scope, ...sourceOf(kind, content) });
    done();
    close();
  }
  return html`<${Dialog} title="Publish a prefix" close=${close}>
    <${Form} send=${send} button="Publish" cancel=${close}>
      <${Input} label="Name" name="name" required maxlength="128" autofocus
        hint="Publishing a name again makes a new version, which replaces the old one." />
      <${Select} label="For" name="scope" value="all" options=${[["all", "all tenants"], ...groups.map(({ id, name }) => [id, name])]} />
      <${Select} label="What it is" name="kind" value=${kind} options=${KINDS} onChange=${(event) => setKind(event.currentTarget.value)} />
      <${Field} label="Content" hint=${HINTS[kind]}>
        ${(given) => html`<textarea ...${given} name="content" rows="10" required spellcheck=${kind !== "chat"}></textarea>`}
      <//>
    <//>
  <//>`;
}

function sourceOf(kind, content) {
  if (kind === "system") return { messages: [{ role: "system", content }] };
  if (kind === "text") return { text: content };
  const { messages, tools, ...rest } = parsed(content);
  const [unknown] = Object.keys(rest);
  if (unknown !== undefined) throw new ApiError(0, null, `A chat has no \`${unknown}\` here.`);
  return { messages, tools };
}

function parsed(content) {
  let value;
  try {
    value = JSON.parse(content);
  } catch (error) {
    throw new ApiError(0, null, `This is not JSON: ${error.message}.`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new ApiError(0, null, "The content must be an object.");
  }
  return value;
}
