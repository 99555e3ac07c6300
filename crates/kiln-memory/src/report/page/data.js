"use strict";
// The page works without this script; with it the timeline can be explored.
(() => {
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
  const swatch = (slug) => {
    const mark = element("span", undefined, "swatch");
    mark.style.background = `var(--${slug})`;
    return mark;
  };

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
