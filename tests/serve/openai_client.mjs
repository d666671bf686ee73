// Drives every endpoint of OpenAI's client for node; prints what the test compares.
// Arguments: the folder of the package, the base URL.
import { pathToFileURL } from "node:url";

const [folder, baseURL] = process.argv.slice(2);
const { default: OpenAI } = await import(pathToFileURL(`${folder}/index.mjs`).href);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the sea?" }];
const input = "What is the sea?";
const found = {};

async function joined(stream, text) {
  let all = "";
  for await (const event of stream) all += text(event) ?? "";
  return all;
}

const prompt = { model: "demo", prompt: "The sea", max_tokens: 8 };
found.completion = (await client.completions.create(prompt)).choices[0].text;
found.completionStream = await joined(
  await client.completions.create({ ...prompt, stream: true }), (event) => event.choices[0].text);
const chat = { model: "demo", messages, max_tokens: 8 };
found.chat = (await client.chat.completions.create(chat)).choices[0].message.content;
found.chatStream = await joined(
  await client.chat.completions.create({ ...chat, stream: true }), (event) => event.choices[0].delta.content);
const response = { model: "demo", input, max_output_tokens: 8 };
found.response = (await client.responses.create(response)).output_text;
found.responseStream = await joined(
  await client.responses.create({ ...response, stream: true }),
  (event) => (event.type === "response.output_text.delta" ? event.delta : ""));
const call = {
  type: "function",
  function: { name: "look", parameters: { type: "object", properties: { far: { type: "boolean" } }, required: ["far"] } },
};
const called = await client.chat.completions.create({
  model: "demo", messages, tools: [call], tool_choice: "required", parallel_tool_calls: false, max_tokens: 60 });
found.call = JSON.parse(called.choices[0].message.tool_calls[0].function.arguments);
found.models = (await client.models.list()).data.map((model) => model.id);
const embedding = await client.embeddings.create({ model: "demo", input: "The sea" });
found.norm = Math.hypot(...embedding.data[0].embedding);
try {
  await client.completions.create({ ...prompt, model: "none" });
} catch (error) {
  found.error = [error.status, error.code, error.param];
}
const cancelled = new AbortController();
try {
  const stream = await client.completions.create({ ...prompt, max_tokens: 400, stream: true }, { signal: cancelled.signal });
  for await (const _ of stream) cancelled.abort();
} catch (error) {
  if (!(error instanceof OpenAI.APIUserAbortError)) throw error;
}
console.log(JSON.stringify(found));
