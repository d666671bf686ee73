const NUMBERS = ["temperature", "top_p", "seed", "max_tokens"];

/** The conversation, its messages on the server's side, and the answer that is on its way. */
export class Chat {
  constructor(element, headers) {
    this.element = element;
    this.headers = headers;
    this.messages = [];
    this.abort = null;
    element("compose").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    element("message").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        element("compose").requestSubmit();
      }
    });
    element("stop").addEventListener("click", () => this.abort?.abort());
    element("clear").addEventListener("click", () => this.clear());
  }

  clear() {
    this.abort?.abort();
    this.messages = [];
    this.element("conversation").replaceChildren();
    this.say("");
    this.element("message").focus();
  }

  async send() {
    const text = this.element("message").value.trim();
    if (this.abort || !text) return;
    this.element("message").value = "";
    this.messages.push({ role: "user", content: text });
    this.show("You").content.textContent = text;
    const shown = this.show("Model");
    const answer = { role: "assistant", content: "", reasoning: "" };
    this.busy(true);
    try {
      const usage = await this.stream(answer, shown);
      this.say(usage ? `${usage.completion_tokens} tokens; ${usage.prompt_tokens_details?.cached_tokens ?? 0} of ${usage.prompt_tokens} prompt tokens from the cache` : "");
    } catch (error) {
      if (error.name === "AbortError") this.say("Stopped.");
      else this.say(error.message, true);
    }
    if (answer.content) this.messages.push({ role: "assistant", content: answer.content });
    this.busy(false);
  }

  /** Add the answer's text as it arrives; returns its usage. */
  async stream(answer, shown) {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...this.headers() },
      body: JSON.stringify(this.request()),
      signal: this.abort.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error?.message ?? `status ${response.status}`);
    let usage = null;
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const delta = chunk.choices[0]?.delta ?? {};
      answer.content += delta.content ?? "";
      answer.reasoning += delta.reasoning_content ?? "";
      shown.content.textContent = answer.content;
      shown.reasoning.hidden = !answer.reasoning;
      shown.reasoningText.textContent = answer.reasoning;
      this.showEnd();
    }
    return usage;
  }

  request() {
    const system = this.element("system").value.trim();
    const messages = system ? [{ role: "system", content: system }, ...this.messages] : this.messages;
    const given = NUMBERS.map((name) => [name, this.element(name).value]).filter(([, value]) => value !== "");
    const numbers = Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
    return { model: this.element("model").value, messages, stream: true, stream_options: { include_usage: true }, ...numbers };
  }

  show(role) {
    const item = document.createElement("li");
    const name = document.createElement("span");
    name.className = "role";
    name.textContent = role;
    const reasoning = document.createElement("details");
    reasoning.hidden = true;
    const summary = document.createElement("summary");
    summary.textContent = "Reasoning";
    const reasoningText = document.createElement("div");
    reasoning.append(summary, reasoningText);
    const content = document.createElement("div");
    item.append(name, reasoning, content);
    this.element("conversation").append(item);
    this.showEnd();
    return { content, reasoning, reasoningText };
  }

  /** Scroll the conversation alone: the buttons stay where they are. */
  showEnd() {
    const list = this.element("conversation");
    list.scrollTop = list.scrollHeight;
  }

  busy(is) {
    this.abort = is ? new AbortController() : null;
    this.element("send").disabled = is;
    this.element("stop").disabled = !is;
    this.element("conversation").setAttribute("aria-busy", String(is));
    if (!is) this.element("message").focus();
  }

  say(text, isError = false) {
    this.element("status").textContent = text;
    this.element("status").classList.toggle("error", isError);
  }
}

/** The JSON objects of a stream of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value.replaceAll("\r", "");
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      text = text.slice(end + 2);
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
