import { Chat } from "./chat.js";
import { watchMemory } from "./memory.js";

const element = (id) => document.getElementById(id);

/** Headers of every request: the API key, where the server asks for one. */
function headers() {
  const key = element("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function listModels() {
  const response = await fetch("v1/models", { headers: headers() });
  if (response.status === 401) {
    element("key-form").hidden = false;
    element("status").textContent = "This server needs an API key.";
    return;
  }
  const { data } = await response.json();
  element("model").replaceChildren(...data.map(({ id }) => new Option(id, id)));
  element("status").textContent = "";
}

new Chat(element, headers);
element("key").addEventListener("change", listModels);
element("key-form").addEventListener("submit", (event) => event.preventDefault());
listModels();
watchMemory(element, headers);
