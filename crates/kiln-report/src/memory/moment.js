// The panel below the drawing: what is alive at one moment.
const GROUPS = 12;
const OPENED = 60;
const opened = new Set();

const showCategories = (at) => {
  const body = element("tbody");
  slots.forEach((slug, index) => {
    const row = element("tr");
    row.dataset.category = slug;
    const name = element("th");
    name.scope = "row";
    name.append(swatch(slug), chart.categories[index].name);
    const bytes = layers[index].values[at];
    const cell = element("td", amount(bytes), "number");
    cell.dataset.bytes = bytes;
    row.append(name, cell);
    row.classList.toggle("none", !bytes);
    body.append(row);
  });
  find("categories").replaceChildren(body);
};

/** Buffers that are alive, by module and purpose, most first. */
const groupsAt = (at) => {
  const groups = new Map();
  buffers.forEach((buffer, index) => {
    if (!alive(buffer, at) || !matches(buffer)) return;
    const key = `${buffer.category} ${pattern(buffer)}`;
    const group = groups.get(key) || { key, name: pattern(buffer), category: buffer.category, bytes: 0, members: [] };
    group.bytes += buffer.bytes;
    group.members.push(index);
    groups.set(key, group);
  });
  for (const group of groups.values()) {
    group.members.sort((a, b) => buffers[b].bytes - buffers[a].bytes || a - b);
    const paths = new Set(group.members.map((index) => owner(buffers[index])));
    if (paths.size === 1) [group.name] = paths;
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
};

const cells = (row, name, tensors, category, bytes) => {
  const purpose = element("td", nameOf(category), "more");
  const size = element("td", amount(bytes), "number");
  size.dataset.bytes = bytes;
  row.append(name, element("td", tensors, "more"), purpose, size);
  return row;
};

const groupRow = (group) => {
  const row = element("tr", undefined, "group");
  row.dataset.group = group.key;
  const open = opened.has(group.key);
  const button = element("button");
  button.type = "button";
  button.setAttribute("aria-expanded", open);
  button.append(swatch(group.category), element("bdi", group.name, "name"));
  button.addEventListener("click", () => {
    if (!opened.delete(group.key)) opened.add(group.key);
    showAlive(state.at);
    find("alive").querySelector(`tr[data-group="${CSS.escape(group.key)}"] button`).focus();
  });
  const name = element("td");
  name.append(button);
  const first = tensor(buffers[group.members[0]]);
  const alike = group.members.every((index) => tensor(buffers[index]) === first);
  const tensors = first ? `${group.members.length} x ${first}${alike ? "" : " …"}` : `${group.members.length}`;
  return cells(row, name, tensors, group.category, group.bytes);
};

const bufferRow = (index) => {
  const buffer = buffers[index];
  const row = element("tr", undefined, "buffer");
  row.dataset.buffer = index;
  const name = element("td");
  const button = element("button", undefined, "pin");
  button.type = "button";
  button.setAttribute("aria-pressed", state.pins.includes(index));
  button.title = `pin this tensor, made by ${buffer.operation}`;
  button.append(element("bdi", owner(buffer), "name"));
  button.addEventListener("click", () => {
    togglePin(index);
    find("alive").querySelector(`tr[data-buffer="${index}"] button`)?.focus();
  });
  name.append(button, element("small", `from ${buffer.operation}`));
  return cells(row, name, tensor(buffer), buffer.category, buffer.bytes);
};

const showAlive = (at) => {
  const groups = groupsAt(at);
  const rows = groups.slice(0, GROUPS).flatMap((group) => {
    const members = opened.has(group.key) ? group.members.slice(0, OPENED).map(bufferRow) : [];
    return [groupRow(group), ...members];
  });
  // The same number of rows at every moment, so that the page does not jump.
  while (rows.length < GROUPS) {
    const row = element("tr", undefined, "blank");
    const cell = element("td", rows.length || groups.length ? "\u00a0" : "no buffers");
    cell.colSpan = 4;
    row.append(cell);
    rows.push(row);
  }
  find("alive").tBodies[0].replaceChildren(...rows);
  const more = groups.slice(GROUPS);
  const bytes = more.reduce((sum, group) => sum + group.bytes, 0);
  find("rest").dataset.bytes = bytes;
  say("rest", more.length ? `and ${more.length} smaller groups with ${amount(bytes)}` : "\u00a0");
};

const show = (at, again) => {
  at = Math.max(0, Math.min(moments - 1, at));
  if (at === state.at && !again) return;
  state.at = at;
  const seconds = timeOf(middle(at));
  const bytes = liveAt(at);
  moveCursor();
  const phase = operations.length ? phaseOf(at) : measured.phases.find((p) => p.start <= seconds && seconds <= p.end);
  const name = operations.length ? operations[at].name : "Sample";
  const where = `${operations.length ? "operation" : "sample"} ${at + 1} of ${moments}`;
  say("operation", name);
  find("moment").dataset.index = at;
  say("where", [where, phase && phase.phase, chart.clock && `at ${clock(seconds)}`].filter(Boolean).join(", "));
  say("live", amount(bytes));
  find("live").dataset.bytes = bytes;
  if (find("sample")) {
    const sample = sampleAt(seconds);
    say("sample", sample ? amount(sample.bytes) : "\u2013");
    if (sample) find("sample").dataset.bytes = sample.bytes;
  }
  const plot = find("plot");
  plot.setAttribute("aria-valuenow", at + 1);
  plot.setAttribute("aria-valuetext", `${name}, ${where}${phase ? `, ${phase.phase}` : ""}: ${amount(bytes)}`);
  if (operations.length) {
    showCategories(at);
    showAlive(at);
  }
};

// Tensors that the reader has pinned: outlined in the drawing, and listed below it.
const MOST_PINS = 8;
const life = (buffer) => {
  const place = (at) => `${phaseOf(at)?.phase || "operation"} (${at + 1})`;
  const part = (100 * (buffer.dies + 1 - buffer.born)) / operations.length;
  return `alive from ${place(buffer.born)} to ${place(buffer.dies)}, ${part.toFixed(part < 10 ? 1 : 0)} % of the operations`;
};
const showPins = () => {
  const items = state.pins.map((index) => {
    const buffer = buffers[index];
    const item = element("li");
    item.dataset.buffer = index;
    const text = element("span");
    const what = [nameOf(buffer.category), tensor(buffer), amount(buffer.bytes)].filter(Boolean).join(", ");
    const from = buffer.operation === "before the step" ? "made before the step" : `from ${buffer.operation}`;
    text.append(swatch(buffer.category), element("b", owner(buffer), "name"), ` ${what}, ${from}`);
    text.append(element("small", life(buffer)));
    const zoom = element("button", "zoom to its life");
    zoom.type = "button";
    zoom.addEventListener("click", () => {
      const [from, to] = [place(buffer.born), place(buffer.dies + 1)];
      zoomTo(from - (to - from) * 0.1, to + (to - from) * 0.1);
    });
    const unpin = element("button", "unpin");
    unpin.type = "button";
    unpin.setAttribute("aria-label", `unpin ${owner(buffer)}`);
    unpin.addEventListener("click", () => togglePin(index));
    item.append(text, zoom, unpin);
    return item;
  });
  find("pins").replaceChildren(...items);
  find("pins").hidden = !items.length;
  drawOutlines();
  if (state.at >= 0 && operations.length) showAlive(state.at);
};
const togglePin = (index) => {
  const at = state.pins.indexOf(index);
  if (at >= 0) state.pins.splice(at, 1);
  else state.pins = [...state.pins, index].slice(-MOST_PINS);
  say("said", `${at >= 0 ? "unpinned" : "pinned"} ${owner(buffers[index])}`);
  showPins();
};
