// What test_javascript.py has done by OpenAI's, Anthropic's and LangChain's packages for node.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const { CLIENTS_NODE_MODULES, RATOON_URL, RATOON_KEY, RATOON_MODEL: model } = process.env;
const from = createRequire(`${CLIENTS_NODE_MODULES}/`);
const load = (name) => import(pathToFileURL(from.resolve(name)).href);

const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
};
const HI = [{ role: "user", content: "Hi" }];
const JSON_SCHEMA = { name: "weather", schema: SCHEMA, strict: true };

async function openai(task) {
  const { OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: `${RATOON_URL}/v1`, apiKey: RATOON_KEY, maxRetries: 0 });
  const { completions } = client.chat;
  if (task === "text") return (await completions.create({ model, messages: HI })).choices[0].message.content;
  if (task === "stream") return completions.stream({ model, messages: HI }).finalContent();
  if (task === "object") {
    const response_format = { type: "json_schema", json_schema: JSON_SCHEMA };
    return (await completions.parse({ model, messages: HI, response_format })).choices[0].message.parsed;
  }
  const weather = { name: "weather", parameters: SCHEMA, parse: JSON.parse, function: () => "rain" };
  const tools = [{ type: "function", function: weather }];
  return completions.runTools({ model, messages: HI, tools }).finalContent();
}

async function anthropic(task) {
  const { Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: RATOON_URL, apiKey: RATOON_KEY, maxRetries: 0 });
  const asked = { model, max_tokens: 200, messages: HI };
  const text = (message) => message.content.at(-1).text;
  if (task === "text") return text(await client.messages.create(asked));
  if (task === "stream") return client.messages.stream(asked).finalText();
  if (task === "object") {
    const format = { type: "json_schema", schema: SCHEMA };
    return JSON.parse(text(await client.messages.create({ ...asked, output_config: { format } })));
  }
  if (task === "thread") {
    const thread = client.beta.messages.thread({ model, max_tokens: 200 });
    await thread.send(HI[0]);
    const stream = thread.stream({ role: "user", content: "And?" });
    const second = await stream.finalMessage();
    if (thread.previousMessageId !== second.id) throw new Error("the thread was given up");
    return text(await thread.send({ role: "user", content: "So?" }));
  }
  const { betaTool } = await load("@anthropic-ai/sdk/helpers/beta/json-schema");
  const weather = { name: "weather", description: "", inputSchema: SCHEMA, run: () => "rain" };
  return text(await client.beta.messages.toolRunner({ ...asked, tools: [betaTool(weather)] }));
}

async function langchain(task, fields = {}) {
  const { ChatOpenAI } = await load("@langchain/openai");
  const { HumanMessage } = await load("@langchain/core/messages");
  const { tool } = await load("@langchain/core/tools");
  const configuration = { baseURL: `${RATOON_URL}/v1` };
  const chat = new ChatOpenAI({ model, apiKey: RATOON_KEY, configuration, maxRetries: 0, ...fields });
  if (task === "text") return (await chat.invoke("Hi")).text;
  if (task === "stream") {
    let all = "";
    for await (const chunk of await chat.stream("Hi")) all += chunk.text;
    return all;
  }
  if (task === "object") return chat.withStructuredOutput(SCHEMA, { name: "weather" }).invoke("Hi");
  const weather = tool(() => "rain", { name: "weather", description: "", schema: SCHEMA });
  const bound = chat.bindTools([weather]);
  const said = await bound.invoke("Hi");
  const results = await Promise.all(said.tool_calls.map((call) => weather.invoke(call)));
  return (await bound.invoke([new HumanMessage("Hi"), said, ...results])).text;
}

const clients = {
  openai,
  anthropic,
  langchain,
  "langchain, responses": (task) => langchain(task, { useResponsesApi: true }),
};
const [client, task] = process.argv.slice(2);
console.log(JSON.stringify(await clients[client](task)));
