const SECONDS = 2;
const ROW = 18;
const WIDEST = 900;
const SVG = "http://www.w3.org/2000/svg";

/** Show the memory of the chosen model, again every two seconds while the page is visible. */
export async function watchMemory(element, headers) {
  for (;;) {
    if (!document.hidden && element("model").value) await show(element, headers);
    await new Promise((resolve) => setTimeout(resolve, 1000 * SECONDS));
  }
}

async function show(element, headers) {
  const note = element("memory-note");
  try {
    const response = await fetch(`memory/${encodeURIComponent(element("model").value)}`, { headers: headers() });
    const view = await response.json();
    if (!response.ok) throw new Error(view.error?.message ?? `status ${response.status}`);
    note.textContent = view.loaded ? "" : "The model is not loaded.";
    if (view.loaded) draw(element, view);
  } catch (error) {
    note.textContent = error.message;
  }
}

function draw(element, view) {
  element("pools").replaceChildren(
    pool(`KV blocks of ${view.block_size} tokens`, view.blocks),
    pool("State slots", view.slots),
  );
  element("sequences").tBodies[0].replaceChildren(...view.sequences.map(row));
  const nodes = view.nodes ?? [];
  element("tree").replaceChildren(tree(nodes));
  element("tree-text").textContent = treeText(view.nodes, view.hidden_nodes);
}

function pool(name, use) {
  const item = document.createElement("div");
  item.className = "pool";
  const text = document.createElement("div");
  text.textContent = `${name}: ${use.running} in requests, ${use.cached} cached, ${use.free} free`;
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.setAttribute("aria-hidden", "true");
  for (const kind of ["running", "cached"]) {
    const part = document.createElement("div");
    part.className = kind;
    part.style.width = `${(100 * use[kind]) / Math.max(1, use.total)}%`;
    bar.append(part);
  }
  item.append(text, bar);
  return item;
}

function row(sequence) {
  const cells = [sequence.number, sequence.running ? "running" : "waiting", sequence.tokens, sequence.computed, sequence.cached];
  const line = document.createElement("tr");
  line.append(...cells.map((value) => Object.assign(document.createElement("td"), { textContent: value })));
  return line;
}

/** Each node as a bar from its first to its last token; children in the rows below their parent. */
function tree(nodes) {
  const picture = document.createElementNS(SVG, "svg");
  const longest = Math.max(1, ...nodes.map((node) => node.end));
  const scale = Math.min(1, WIDEST / longest);
  const order = depthFirst(nodes);
  picture.setAttribute("width", Math.ceil(longest * scale) + 2);
  picture.setAttribute("height", Math.max(1, order.length) * ROW);
  order.forEach((place, index) => {
    const node = nodes[place];
    const bar = document.createElementNS(SVG, "rect");
    bar.setAttribute("x", 1 + (node.end - node.tokens) * scale);
    bar.setAttribute("y", index * ROW + 2);
    bar.setAttribute("width", Math.max(2, node.tokens * scale));
    bar.setAttribute("height", ROW - 4);
    bar.setAttribute("class", `${node.has_state ? "state" : ""} ${node.in_use ? "used" : ""}`);
    const title = document.createElementNS(SVG, "title");
    title.textContent = `tokens ${node.end - node.tokens} to ${node.end}, used ${node.uses} times`;
    bar.append(title);
    picture.append(bar);
  });
  return picture;
}

function depthFirst(nodes) {
  const children = new Map();
  nodes.forEach((node, place) => children.set(node.parent, [...(children.get(node.parent) ?? []), place]));
  const order = [];
  const waiting = [...(children.get(null) ?? [])].reverse();
  while (waiting.length) {
    const place = waiting.pop();
    order.push(place);
    waiting.push(...(children.get(place) ?? []).reverse());
  }
  return order;
}

function treeText(nodes, hidden) {
  if (nodes === null) return "Not shown: clients have keys, or the model has no prefix tree.";
  const states = nodes.filter((node) => node.has_state).length;
  const more = hidden ? ` (and ${hidden} that are not shown)` : "";
  return `${nodes.length} nodes${more}, ${states} with a state, ${nodes.filter((node) => node.in_use).length} in use.`;
}
