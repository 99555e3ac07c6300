// The timeline of a step, drawn as wide as the page is. The page works without scripts; with them the timeline can be explored.
const find = (id) => document.getElementById(id);
const say = (id, text) => { find(id).textContent = text; };

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      say("said", `copied ${button.dataset.copy}`);
      button.textContent = "copied";
    } catch {
      // Without a clipboard the option is selected instead.
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}

const read = (id) => JSON.parse(find(id).textContent);
const report = read("data");
const chart = read("chart");
if (!chart || !find("plot")) return;

const operations = chart.starts.length ? report.prediction.operations : [];
const buffers = operations.length ? report.prediction.buffers : [];
const phases = operations.length ? report.prediction.phases : [];
const measured = report.measured || { phases: [], samples: [] };
const samples = measured.samples.filter((s) => s.seconds !== null).sort((a, b) => a.seconds - b.seconds);
const slots = chart.categories.map((category) => category.slug);
// A moment is an operation, or a sample where nothing was predicted.
const moments = operations.length || samples.length;
if (!moments) return;
const alive = (buffer, at) => buffer.born <= at && at <= buffer.dies;
const liveAt = (at) => (operations.length ? operations[at].live_bytes : samples[at].bytes);
const phaseOf = (at) => phases.find((phase) => phase.first <= at && at < phase.end);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const amount = (bytes) => {
  let unit = 0;
  for (; bytes >= 1024 && unit < UNITS.length - 1; unit++) bytes /= 1024;
  return unit ? `${bytes.toFixed(1)} ${UNITS[unit]}` : `${bytes} B`;
};
const clock = (seconds) => `${(seconds / chart.clock.seconds).toPrecision(4)} ${chart.clock.name}`;
const tensor = (buffer) => {
  const bytes = !buffer.shape.length && buffer.dtype === "U8"; // bytes that are no tensor
  return bytes ? "" : `${buffer.dtype} ${buffer.shape.join("x") || "scalar"}`;
};
const owner = (buffer) => buffer.path || `(${buffer.operation})`;
const nameOf = (slug) => (chart.categories[slots.indexOf(slug)] || { name: slug }).name;
/** The path with a star for each number: layers of blocks that are alike have the same. */
const patterns = new Map();
const pattern = (buffer) => patterns.get(buffer);

for (const buffer of buffers) {
  patterns.set(buffer, owner(buffer).split(".").map((part) => (/^\d+$/.test(part) ? "*" : part)).join("."));
}

const element = (name, text, className) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};
const swatch = (slug) => element("span", undefined, `swatch b-${slug}`);

/** Bytes over the operations: sums of the buffers that begin minus those that have ended. */
const summed = (chosen) => {
  const sums = new Float64Array(operations.length + 1);
  for (const buffer of chosen) {
    if (buffer.born > buffer.dies || buffer.born >= operations.length) continue;
    sums[buffer.born] += buffer.bytes;
    sums[Math.min(buffer.dies + 1, operations.length)] -= buffer.bytes;
  }
  for (let at = 1; at < sums.length; at++) sums[at] += sums[at - 1];
  return sums;
};
// Bytes of each category at each operation; bytes that are alive beyond the buffers count as workspace.
const whole = slots.map((slug) => summed(buffers.filter((buffer) => buffer.category === slug)));
operations.forEach((operation, at) => {
  const held = whole.reduce((sum, layer) => sum + layer[at], 0);
  whole[slots.indexOf("workspace")][at] += Math.max(0, operation.live_bytes - held);
});

// What the reader has chosen.
const state = { at: -1, held: false, filter: "", axis: "time", pins: [], under: -1 };
const matches = (buffer) => {
  const text = state.filter.toLowerCase();
  return !text || owner(buffer).toLowerCase().includes(text) || pattern(buffer).toLowerCase().includes(text);
};

// The drawing: as wide as the page is, of the part of the step that is in view.
const svg = find("timeline");
const make = (name, attributes, text) => {
  const made = document.createElementNS(svg.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const frame = { width: 0, height: 0, left: 0, right: 0, top: 34, bottom: 0 };
const full = () => (state.axis === "operation" ? [0, operations.length] : [chart.from, chart.to]);
const view = { from: chart.from, to: chart.to };

const begins = operations.length ? chart.starts : samples.map((sample) => sample.seconds);
const place = (at) => (state.axis === "operation" ? at : begins[Math.min(at, begins.length - 1)]);
const middle = (at) => (operations.length ? (place(at) + place(at + 1)) / 2 : place(at));
/** The last of sorted places that is not behind `value`, at least 0. */
const last = (count, at, value) => {
  let [low, high] = [0, count];
  while (low < high) {
    const half = (low + high) >> 1;
    if (at(half) <= value) low = half + 1; else high = half;
  }
  return Math.max(0, low - 1);
};
const sampleAt = (seconds) => samples[last(samples.length, (i) => samples[i].seconds, seconds)];
const timeOf = (position) => {
  if (state.axis !== "operation") return position;
  const at = Math.min(operations.length - 1, Math.floor(position));
  return begins[at] + (begins[at + 1] - begins[at]) * (position - at);
};
const positionOf = (seconds) => {
  if (state.axis !== "operation") return seconds;
  const at = last(operations.length, (i) => begins[i], seconds);
  const width = begins[at + 1] - begins[at];
  return at + (width > 0 ? Math.min(1, (seconds - begins[at]) / width) : 0);
};
const x = (position) => frame.left + ((frame.right - frame.left) * (position - view.from)) / (view.to - view.from);
const y = (bytes) => frame.bottom - (frame.bottom - frame.top) * Math.min(1, bytes / chart.most);
const positionAt = (px) => view.from + ((view.to - view.from) * (px - frame.left)) / (frame.right - frame.left);

/** The operation that each column of pixels shows: of all in it the one with the most alive, so that no peak is lost. */
const columns = () => {
  const shown = new Int32Array(Math.max(1, Math.ceil(frame.right - frame.left))).fill(-1);
  const first = last(operations.length, place, view.from);
  for (let at = first; at < operations.length && place(at) <= view.to; at++) {
    const from = Math.max(0, Math.floor(x(place(at)) - frame.left));
    const to = Math.min(shown.length, Math.max(from + 1, Math.ceil(x(place(at + 1)) - frame.left)));
    for (let column = from; column < to; column++) {
      if (shown[column] < 0 || liveAt(at) > liveAt(shown[column])) shown[column] = at;
    }
  }
  return shown;
};

/** What is stacked, from the bottom: the purposes; with a filter those of what matches, and all else above them. */
let layers = [];
const layerOf = (buffer) => (matches(buffer) ? slots.indexOf(buffer.category) : slots.length);
const stack = () => {
  if (!state.filter) {
    layers = slots.map((slug, index) => ({ slug, values: whole[index] }));
    return;
  }
  const chosen = buffers.filter(matches);
  layers = slots.map((slug) => ({ slug, values: summed(chosen.filter((buffer) => buffer.category === slug)) }));
  const rest = operations.map((operation, at) =>
    Math.max(0, operation.live_bytes - layers.reduce((sum, layer) => sum + layer.values[at], 0)));
  layers.push({ slug: "others", values: rest });
};

const ticks = (from, to, count) => {
  const rough = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999999);
  if (!step || !isFinite(step)) return [];
  const digits = Math.min(20, Math.max(0, -Math.floor(Math.log10(step * 1.000001))));
  const found = [];
  for (let index = Math.ceil(from / step - 1e-9); index * step <= to + step * 1e-9 && found.length < 40; index++) {
    const text = (index * step).toFixed(digits);
    if (!found.length || found[found.length - 1][1] !== text) found.push([index * step, text]);
  }
  return found;
};

const drawGrid = () => {
  const parts = [];
  const unit = [4, 3, 2, 1].find((power) => chart.most >= 2 * 1024 ** power) || 0;
  for (const [at, text] of ticks(0, chart.most / 1024 ** unit, frame.height / 60)) {
    const height = y(at * 1024 ** unit);
    parts.push(make("path", { d: `M${frame.left} ${height}H${frame.right}`, class: "s-line" }));
    parts.push(make("text", { x: frame.left - 8, y: height + 4, class: "f-quiet end" }, text));
  }
  parts.push(make("text", { x: frame.left - 8, y: frame.top - 14, class: "f-quiet end" }, UNITS[unit]));
  const span = timeOf(view.to) - timeOf(view.from);
  const clocks = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
  const timed = state.axis === "time" && chart.clock;
  const [name, size] = timed ? clocks.find((clock) => span >= 2 * clock[1]) || clocks[3] : ["", 1];
  const what = state.axis === "operation" ? "operation" : chart.axis;
  for (const [at, text] of ticks(view.from / size, view.to / size, Math.max(6, (frame.right - frame.left) / 84))) {
    const across = x(at * size);
    parts.push(make("path", { d: `M${across} ${frame.bottom}v5`, class: "s-line" }));
    parts.push(make("text", { x: across, y: frame.bottom + 19, class: "f-quiet middle" }, text));
  }
  const title = name ? `${what}, ${name}` : what;
  parts.push(make("text", { x: (frame.left + frame.right) / 2, y: frame.height - 6, class: "f-quiet middle" }, title));
  find("grid").replaceChildren(...parts);
};

const stepPath = (shown, edge) => {
  let [path, before] = ["", -1];
  shown.forEach((at, column) => {
    if (at < 0) return;
    const height = Math.round(edge(at) * 10) / 10;
    if (!path) path = `M${frame.left + column} ${frame.bottom}V${height}`;
    else if (height !== before) path += `H${frame.left + column}V${height}`;
    before = height;
  });
  return path && `${path}H${frame.right}V${frame.bottom}Z`;
};

const drawAreas = (shown) => {
  const parts = [];
  const sums = new Float64Array(operations.length);
  for (const layer of layers) {
    if (!layer.values.some((bytes) => bytes > 0)) continue;
    for (let at = 0; at < sums.length; at++) sums[at] += layer.values[at];
    const path = stepPath(shown, (at) => y(sums[at]));
    if (path) parts.unshift(make("path", { d: path, class: `f-${layer.slug}` }));
  }
  const points = samples.length ? samples.map((s) => [s.seconds, s.bytes]) : chart.levels;
  let [path, column] = ["", []];
  const flush = () => {
    if (!column.length) return;
    const heights = column.map((point) => point[1]);
    const kept = new Set([0, heights.indexOf(Math.min(...heights)), heights.indexOf(Math.max(...heights)), column.length - 1]);
    for (const index of [...kept].sort((a, b) => a - b)) {
      path += `${path ? "L" : "M"}${column[index][0].toFixed(1)} ${y(column[index][1]).toFixed(1)}`;
    }
    column = [];
  };
  for (const [seconds, bytes] of points) {
    const across = x(positionOf(seconds));
    if (across < frame.left - 2000 || across > frame.right + 2000) continue;
    if (column.length && Math.floor(column[0][0]) !== Math.floor(across)) flush();
    column.push([across, bytes]);
  }
  flush();
  if (path) {
    parts.push(make("path", { d: path, class: "s-paper halo" }), make("path", { d: path, class: "s-curve measured" }));
  }
  find("areas").replaceChildren(...parts);
};

/** Text with the paper's colour around it, readable on every shape. */
const label = (across, height, text, className) => make("text", { x: across, y: height, class: `${className} label` }, text);

const drawMarks = () => {
  const [marks, names] = [[], []];
  let free = frame.right;
  for (const band of [...chart.bands].reverse()) {
    const [from, to] = [positionOf(band.from), positionOf(band.to)].map((position) => x(position));
    if (to < frame.left || from > frame.right) continue;
    if (from >= frame.left) marks.push(make("path", { d: `M${from} ${frame.top - 8}V${frame.bottom}`, class: "s-quiet dashed" }));
    const width = 7 * band.phase.length;
    const seen = (Math.max(from, frame.left) + Math.min(to, frame.right)) / 2;
    const end = Math.max(frame.left + width, Math.min(seen + width / 2, free));
    if (to - from < width && chart.bands.length > 4) continue;
    const name = make("text", { x: end - width / 2, y: frame.top - 14, class: "f-ink middle phase" }, band.phase);
    name.append(make("title", {}, `zoom to ${band.phase}`));
    name.addEventListener("click", () => zoomTo(positionOf(band.from), positionOf(band.to)));
    names.push(name);
    free = end - width - 8;
  }
  for (const line of chart.lines) {
    marks.push(make("path", { d: `M${frame.left} ${y(line.bytes)}H${frame.right}`, class: "level" }));
    marks.push(label(frame.left + 6, y(line.bytes) - 5, `${line.name} ${line.size}`, "f-bad"));
  }
  const peak = report.prediction && report.prediction.peak_at;
  if (operations[peak] && x(middle(peak)) >= frame.left && x(middle(peak)) <= frame.right) {
    const [across, height] = [x(middle(peak)), y(report.prediction.peak_bytes)];
    const side = across < frame.left + 90 ? "start" : across > frame.right - 90 ? "end" : "middle";
    marks.push(make("circle", { cx: across, cy: height, r: 3.5, class: "f-ink s-paper" }));
    marks.push(label(across, height - 9, `predicted peak ${amount(report.prediction.peak_bytes)}`, `f-ink ${side}`));
  }
  find("marks").replaceChildren(...marks);
  find("phases-above").replaceChildren(...names);
};

/** Bytes below a buffer in the stack, at each operation. */
const below = (index) => {
  const layer = layerOf(buffers[index]);
  const base = summed(buffers.filter((buffer, other) => other < index && layerOf(buffer) === layer));
  for (const lower of layers.slice(0, layer)) for (let at = 0; at < operations.length; at++) base[at] += lower.values[at];
  return base;
};
/** The buffer that is drawn at a height, or -1. */
const bufferAt = (at, bytes) => {
  let base = 0;
  for (let layer = 0; layer < layers.length; layer++) {
    const top = base + layers[layer].values[at];
    if (bytes < top) {
      for (let index = 0; index < buffers.length; index++) {
        if (!alive(buffers[index], at) || layerOf(buffers[index]) !== layer) continue;
        base += buffers[index].bytes;
        if (bytes < base) return index;
      }
      return -1;
    }
    base = top;
  }
  return -1;
};
const outline = (index, shown, className) => {
  const [buffer, base] = [buffers[index], below(index)];
  const from = Math.max(0, Math.floor(x(place(buffer.born)) - frame.left));
  const to = Math.min(shown.length, Math.max(from + 2, Math.ceil(x(place(buffer.dies + 1)) - frame.left)));
  let [up, down] = ["", ""];
  for (let column = from; column < to; column++) {
    const at = Math.max(buffer.born, Math.min(buffer.dies, shown[column]));
    const [low, high] = [y(base[at]).toFixed(1), y(base[at] + buffer.bytes).toFixed(1)];
    const across = frame.left + column;
    up += `${up ? "L" : "M"}${across} ${high}H${across + 1}`;
    down = `L${across + 1} ${low}H${across}${down}`;
  }
  return make("path", { d: up && `${up}${down}Z`, class: className });
};

let shown = new Int32Array(0);
const drawOutlines = () => {
  const parts = state.pins.map((index) => outline(index, shown, "outline"));
  if (state.under >= 0 && !state.pins.includes(state.under)) parts.push(outline(state.under, shown, "outline faint"));
  find("outlines").replaceChildren(...parts);
};

const drawOverview = () => {
  const [from, to] = full();
  const zoomed = view.from > from || view.to < to;
  find("overview").toggleAttribute("hidden", !zoomed);
  find("zoom-all").disabled = !zoomed;
  find("zoom-out").disabled = !zoomed;
  if (!zoomed) return;
  const across = (position) => frame.left + ((frame.right - frame.left) * (position - from)) / (to - from);
  const height = 34;
  let path = `M${frame.left} ${height}`;
  const step = Math.max(1, Math.floor(moments / 800));
  for (let at = 0; at < moments; at += step) {
    let most = 0;
    for (let near = at; near < Math.min(moments, at + step); near++) most = Math.max(most, liveAt(near));
    path += `L${across(place(at)).toFixed(1)} ${(height - (height - 2) * Math.min(1, most / chart.most)).toFixed(1)}`;
  }
  const box = { x: across(view.from), y: 0.5, width: Math.max(3, across(view.to) - across(view.from)), height: height - 1 };
  const overview = find("overview");
  overview.setAttribute("viewBox", `0 0 ${frame.width} ${height}`);
  overview.setAttribute("height", height);
  overview.replaceChildren(make("path", { d: `${path}L${frame.right} ${height}Z`, class: "f-line" }),
    make("rect", { ...box, class: "window" }));
};

const draw = () => {
  frame.width = Math.max(260, find("stage").clientWidth);
  const narrow = frame.width < 600;
  Object.assign(frame, narrow ? { left: 44, height: 300 } : { left: 56, height: 400 });
  Object.assign(frame, { right: Math.floor(frame.width - (narrow ? 6 : 14)), bottom: frame.height - 44 });
  const size = { width: frame.right - frame.left, height: frame.bottom - frame.top };
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  svg.setAttribute("height", frame.height);
  for (const id of ["clip-box", "plot"]) {
    for (const [key, value] of Object.entries({ x: frame.left, y: frame.top, ...size })) find(id).setAttribute(key, value);
  }
  shown = columns();
  drawGrid();
  drawAreas(shown);
  drawMarks();
  drawOutlines();
  drawOverview();
  moveCursor();
};

const moveCursor = () => {
  const cursor = find("cursor");
  const across = state.at < 0 ? -1 : x(middle(state.at));
  const inside = across >= frame.left - 0.5 && across <= frame.right + 0.5;
  cursor.setAttribute("visibility", inside ? "visible" : "hidden");
  cursor.querySelector("path").setAttribute("d", `M${across} ${frame.top}V${frame.bottom}`);
  cursor.querySelector("circle").setAttribute("cx", across);
  cursor.querySelector("circle").setAttribute("cy", state.at < 0 ? 0 : y(liveAt(state.at)));
};

/** Shows a part of the step, at least one operation or a thousandth of a millionth of it. */
const zoomTo = (from, to) => {
  const [first, end] = full();
  const least = Math.max((end - first) * 1e-5, Number.MIN_VALUE);
  const width = Math.min(end - first, Math.max(least, to - from));
  const centre = (from + to) / 2;
  view.from = Math.max(first, Math.min(end - width, centre - width / 2));
  view.to = view.from + width;
  draw();
};
const zoomBy = (factor, position) => {
  const part = (position - view.from) / (view.to - view.from);
  const width = (view.to - view.from) / factor;
  zoomTo(position - width * part, position + width * (1 - part));
};
