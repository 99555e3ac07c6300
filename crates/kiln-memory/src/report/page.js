"use strict";
// Moves a cursor over the timeline and shows the buffers alive under it. The drawing and the tables are in the page already.
(() => {
  const find = (id) => document.getElementById(id);
  const read = (id) => JSON.parse(find(id).textContent);
  const report = read("data");
  const chart = read("chart");
  const plot = find("plot");
  if (!chart || !plot) return;

  const operations = chart.starts.length ? report.prediction.operations : [];
  const buffers = operations.length ? report.prediction.buffers : [];
  const phases = operations.length ? report.prediction.phases : [];
  const measured = report.measured || { phases: [], samples: [] };
  const samples = measured.samples.filter((s) => s.seconds !== null).sort((a, b) => a.seconds - b.seconds);
  const slots = chart.categories.map((category) => category.slug);
  // A moment is an operation, or a sample where nothing was predicted.
  const moments = operations.length || samples.length;
  if (!moments) return;
  const ROWS = 15;
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

  const amount = (bytes) => {
    let unit = 0;
    for (; bytes >= 1024 && unit < UNITS.length - 1; unit++) bytes /= 1024;
    return unit ? `${bytes.toFixed(1)} ${UNITS[unit]}` : `${bytes} B`;
  };
  const clock = (seconds) => `${(seconds / chart.clock.seconds).toPrecision(4)} ${chart.clock.name}`;
  const xOf = (seconds) =>
    chart.left + ((chart.right - chart.left) * (seconds - chart.from)) / (chart.to - chart.from);
  const timeOf = (x) => chart.from + ((chart.to - chart.from) * (x - chart.left)) / (chart.right - chart.left);
  const begins = operations.length ? chart.starts : samples.map((sample) => xOf(sample.seconds));
  const middle = (at) => (operations.length ? (begins[at] + begins[at + 1]) / 2 : begins[at]);

  // Bytes of each category at each operation: sums of the buffers that begin minus those that have ended.
  const layers = slots.map(() => new Float64Array(operations.length + 1));
  for (const buffer of buffers) {
    if (buffer.born > buffer.dies || buffer.born >= operations.length) continue;
    const layer = layers[slots.indexOf(buffer.category)];
    layer[buffer.born] += buffer.bytes;
    layer[Math.min(buffer.dies + 1, operations.length)] -= buffer.bytes;
  }
  for (const layer of layers) for (let at = 1; at < layer.length; at++) layer[at] += layer[at - 1];
  const held = (at) => layers.reduce((sum, layer) => sum + layer[at], 0);
  // Bytes that are alive beyond the buffers count as workspace.
  operations.forEach((operation, at) => {
    layers[slots.indexOf("workspace")][at] += Math.max(0, operation.live_bytes - held(at));
  });

  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const sized = (bytes) => {
    const cell = element("td", amount(bytes), "number");
    cell.dataset.bytes = bytes;
    return cell;
  };
  const swatch = (slug) => {
    const mark = element("span", undefined, "swatch");
    mark.style.background = `var(--${slug})`;
    return mark;
  };
  const say = (id, text) => { find(id).textContent = text; };

  /** The last sample that is not later. */
  const sampleAt = (seconds) => {
    let [low, high] = [0, samples.length];
    while (low < high) {
      const half = (low + high) >> 1;
      if (samples[half].seconds <= seconds) low = half + 1; else high = half;
    }
    return samples[low - 1];
  };

  const showBreakdown = (at) => {
    const body = element("tbody");
    slots.forEach((slug, index) => {
      const row = element("tr");
      row.dataset.category = slug;
      const name = element("th");
      name.scope = "row";
      name.append(swatch(slug), chart.categories[index].name);
      row.append(name, sized(layers[index][at]));
      body.append(row);
    });
    find("categories").replaceChildren(body);
  };

  const showAlive = (at) => {
    const alive = [];
    buffers.forEach((buffer, index) => { if (buffer.born <= at && at <= buffer.dies) alive.push(index); });
    alive.sort((a, b) => buffers[b].bytes - buffers[a].bytes || a - b);
    const rows = alive.slice(0, ROWS).map((index) => {
      const buffer = buffers[index];
      const row = element("tr");
      row.dataset.buffer = index;
      const path = element("td", undefined, "name");
      path.append(element("bdi", buffer.path || `(${buffer.operation})`));
      path.title = `${buffer.path || "no module"}, made by ${buffer.operation}`;
      const category = element("td");
      category.append(swatch(buffer.category), chart.categories[slots.indexOf(buffer.category)].name);
      row.append(path, element("td", buffer.shape.join("x") || "scalar"), element("td", buffer.dtype), category, sized(buffer.bytes));
      return row;
    });
    // The same number of rows at every moment, so that the page does not jump.
    while (rows.length < ROWS) {
      const row = element("tr", undefined, "blank");
      const cell = element("td", rows.length || alive.length ? "\u00a0" : "no buffers");
      cell.colSpan = 5;
      row.append(cell);
      rows.push(row);
    }
    find("alive").tBodies[0].replaceChildren(...rows);
    const more = alive.slice(ROWS).reduce((sum, index) => sum + buffers[index].bytes, 0);
    say("rest", alive.length > ROWS ? `and ${alive.length - ROWS} smaller ones with ${amount(more)}` : "\u00a0");
  };

  const cursor = find("cursor");
  let current = -1;
  const show = (at) => {
    at = Math.max(0, Math.min(moments - 1, at));
    if (at === current) return;
    current = at;
    const x = middle(at);
    const time = timeOf(x);
    const sample = chart.measured_axis ? sampleAt(time) : undefined;
    const bytes = operations.length ? operations[at].live_bytes : samples[at].bytes;
    const y = chart.bottom - (chart.bottom - chart.top) * Math.min(1, bytes / chart.most);
    cursor.querySelector("path").setAttribute("d", `M${x} ${chart.top}V${chart.bottom}`);
    cursor.querySelector("circle").setAttribute("cx", x);
    cursor.querySelector("circle").setAttribute("cy", y);
    cursor.removeAttribute("visibility");

    const phase = operations.length
      ? phases.find((p) => p.first <= at && at < p.end)
      : measured.phases.find((p) => p.start <= time && time <= p.end);
    const name = operations.length ? operations[at].name : "Sample";
    const where = `${operations.length ? "operation" : "sample"} ${at + 1} of ${moments}`;
    say("operation", name);
    find("moment").dataset.index = at;
    say("where", [where, phase && phase.phase, chart.clock && `at ${clock(time)}`].filter(Boolean).join(", "));
    find("live").textContent = amount(bytes);
    find("live").dataset.bytes = bytes;
    if (find("sample")) {
      find("sample").textContent = sample ? amount(sample.bytes) : "\u2013";
      if (sample) find("sample").dataset.bytes = sample.bytes; else delete find("sample").dataset.bytes;
    }
    plot.setAttribute("aria-valuenow", at + 1);
    plot.setAttribute("aria-valuetext", `${name}, ${where}${phase ? `, ${phase.phase}` : ""}: ${amount(bytes)}`);
    if (operations.length) {
      showBreakdown(at);
      showAlive(at);
    }
  };

  /** The moment that is drawn at a place: of all in one column the one with the most alive, as in the picture. */
  const momentAt = (x) => {
    let [low, high] = [0, moments];
    while (low < high) {
      const half = (low + high) >> 1;
      if (begins[half] <= x - 0.5) low = half + 1; else high = half;
    }
    let best = Math.max(0, low - 1);
    for (let at = low; at < moments && begins[at] <= x + 0.5; at++) {
      if (!operations.length || operations[at].live_bytes > operations[best].live_bytes) best = at;
    }
    return best;
  };

  let pinned = false;
  const hold = (on) => {
    pinned = on;
    find("hold").setAttribute("aria-pressed", on);
    find("hold").textContent = on ? "held, click to go on" : "hold";
  };
  let frame = 0;
  plot.addEventListener("pointermove", (event) => {
    if (pinned || frame) return;
    frame = requestAnimationFrame(() => {
      frame = 0;
      const box = plot.getBoundingClientRect();
      show(momentAt(chart.left + ((chart.right - chart.left) * (event.clientX - box.left)) / box.width));
    });
  });
  plot.addEventListener("click", () => hold(!pinned));
  find("hold").addEventListener("click", () => hold(!pinned));
  const peak = () => {
    if (operations.length) return report.prediction.peak_at;
    return samples.reduce((best, sample, at) => (sample.bytes > samples[best].bytes ? at : best), 0);
  };
  find("to-peak").addEventListener("click", () => show(peak()));
  plot.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 25 : 1;
    const steps = {
      ArrowLeft: current - far, ArrowDown: current - far, ArrowRight: current + far, ArrowUp: current + far,
      PageDown: current - 100, PageUp: current + 100, Home: 0, End: moments - 1,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    show(steps[event.key]);
  });
  show(peak());
})();
