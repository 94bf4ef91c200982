// One task of Vercel's `ai` with one of its providers; prints what came as one line of JSON.
//
//     node vercel.mjs PROVIDER TASK    with RATOON_URL, RATOON_KEY, RATOON_MODEL in the environment
//
// The packages are found where CLIENTS_NODE_MODULES says: this file is not beside them.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

globalThis.AI_SDK_LOG_WARNINGS = false; // they would go where the answer goes
const require = createRequire(`${process.env.CLIENTS_NODE_MODULES}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

const { RATOON_URL: url, RATOON_KEY: apiKey, RATOON_MODEL: model } = process.env;
const baseURL = `${url}/v1`;
const providers = {
  responses: async () => (await load("@ai-sdk/openai")).createOpenAI({ baseURL, apiKey })(model),
  chat: async () => (await load("@ai-sdk/openai")).createOpenAI({ baseURL, apiKey }).chat(model),
  compatible: async () =>
    (await load("@ai-sdk/openai-compatible")).createOpenAICompatible({
      name: "ratoon",
      baseURL,
      apiKey,
      supportsStructuredOutputs: true,
      includeUsage: true,
    })(model),
  groq: async () =>
    (await load("@ai-sdk/groq")).createGroq({ baseURL: `${url}/openai/v1`, apiKey })(model),
  mistral: async () => (await load("@ai-sdk/mistral")).createMistral({ baseURL, apiKey })(model),
  cerebras: async () => (await load("@ai-sdk/cerebras")).createCerebras({ baseURL, apiKey })(model),
  deepseek: async () => (await load("@ai-sdk/deepseek")).createDeepSeek({ baseURL, apiKey })(model),
  openrouter: async () =>
    (await load("@openrouter/ai-sdk-provider"))
      .createOpenRouter({ baseURL: `${url}/api/v1`, apiKey })
      .chat(model),
  anthropic: async () => (await load("@ai-sdk/anthropic")).createAnthropic({ baseURL, apiKey })(model),
};

const { generateText, streamText, generateObject, tool, jsonSchema, stepCountIs } = await load("ai");
const schema = jsonSchema({
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
});
const weather = tool({
  description: "The weather there.",
  inputSchema: schema,
  execute: async ({ city, days }) => `rain in ${city}, ${days} days`,
});
const asked = { model: await providers[process.argv[2]](), prompt: "Hi", maxRetries: 0 };
const loop = { ...asked, tools: { weather }, stopWhen: stepCountIs(3) };

async function streamed(options) {
  const failures = [];
  const run = streamText({ ...options, onError: ({ error }) => failures.push(error) });
  const kinds = [];
  for await (const part of run.fullStream) kinds.push(part.type);
  if (failures.length) throw failures[0];
  const { outputTokens } = await run.totalUsage;
  return { text: await run.text, kinds: [...new Set(kinds)], outputTokens };
}

const tasks = {
  text: async () => {
    const { text, reasoningText, usage, finishReason } = await generateText(asked);
    return { text, reasoning: reasoningText ?? null, finishReason, outputTokens: usage.outputTokens };
  },
  stream: () => streamed(asked),
  tools: async () => {
    const { text, steps } = await generateText(loop);
    return { text, calls: steps.flatMap((step) => step.toolCalls.map((call) => call.input)) };
  },
  stream_tools: () => streamed(loop),
  required: async () => {
    const { toolCalls } = await generateText({ ...asked, tools: { weather }, toolChoice: "required" });
    return { calls: toolCalls.map((call) => call.input) };
  },
  refused: () => generateText({ ...asked, topP: 9 }),
  object: async () => ({ object: (await generateObject({ ...asked, schema })).object }),
};

try {
  console.log(JSON.stringify(await tasks[process.argv[3]]()));
} catch (error) {
  console.log(JSON.stringify({ error: String(error), body: error.responseBody ?? null }));
}
