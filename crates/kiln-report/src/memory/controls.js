// Pointer, touch, keyboard and buttons.
const plot = find("plot");
const tip = find("tip");
const across = (event) => event.clientX - svg.getBoundingClientRect().left;
const bytesAt = (event) => {
  const height = event.clientY - svg.getBoundingClientRect().top;
  return (chart.most * (frame.bottom - height)) / (frame.bottom - frame.top);
};
/** The moment that is drawn at a place. */
const momentAt = (px) => {
  if (!operations.length) {
    const before = last(samples.length, place, positionAt(px));
    const after = Math.min(samples.length - 1, before + 1);
    return Math.abs(x(place(after)) - px) < Math.abs(x(place(before)) - px) ? after : before;
  }
  const column = Math.max(0, Math.min(shown.length - 1, Math.floor(px - frame.left)));
  return shown[column] >= 0 ? shown[column] : last(operations.length, place, positionAt(px));
};

const hold = (on) => {
  state.held = on;
  find("hold").setAttribute("aria-pressed", on);
  find("hold").textContent = on ? "held" : "hold";
};
const showTip = (event, at) => {
  const lines = [element("b", operations.length ? operations[at].name : "measured"), element("span", `${amount(liveAt(at))} alive`)];
  const sample = operations.length && measured.samples.length ? sampleAt(timeOf(middle(at))) : undefined;
  if (sample) lines.push(element("span", `${amount(sample.bytes)} measured`));
  if (state.under >= 0) {
    const buffer = buffers[state.under];
    const line = element("span", undefined, "under");
    line.append(swatch(buffer.category), element("bdi", owner(buffer), "name"), ` ${amount(buffer.bytes)}`);
    lines.push(line);
  }
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const px = across(event);
  const right = px > frame.width / 2;
  tip.style.left = right ? "auto" : `${px + 14}px`;
  tip.style.right = right ? `${frame.width - px + 14}px` : "auto";
  tip.style.top = `${frame.top + 6}px`;
};
const point = (event) => {
  const at = momentAt(across(event));
  const under = operations.length ? bufferAt(at, bytesAt(event)) : -1;
  if (under !== state.under) {
    state.under = under;
    drawOutlines();
  }
  showTip(event, at);
  if (!state.held) show(at);
};
const leave = () => {
  tip.hidden = true;
  if (state.under >= 0) {
    state.under = -1;
    drawOutlines();
  }
};

const pointers = new Map();
let [gesture, frameAsked] = [null, 0];
const selection = find("selection");
const spread = () => {
  const places = [...pointers.values()];
  return { low: Math.min(...places), high: Math.max(...places) };
};
plot.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  plot.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, across(event));
  if (pointers.size === 2) {
    const { low, high } = spread();
    gesture = { kind: "pinch", low: positionAt(low), high: positionAt(high) };
  } else {
    gesture = { kind: "press", from: across(event), mouse: event.pointerType === "mouse" };
  }
  if (event.pointerType !== "mouse") point(event);
});
plot.addEventListener("pointermove", (event) => {
  if (pointers.has(event.pointerId)) pointers.set(event.pointerId, across(event));
  if (frameAsked) return;
  frameAsked = requestAnimationFrame(() => {
    frameAsked = 0;
    if (gesture?.kind === "pinch" && pointers.size === 2) {
      // The places that were touched stay under the fingers.
      const { low, high } = spread();
      const scale = (gesture.high - gesture.low) / Math.max(8, high - low);
      const from = gesture.low - (low - frame.left) * scale;
      zoomTo(from, from + (frame.right - frame.left) * scale);
      return;
    }
    const px = Math.max(frame.left, Math.min(frame.right, across(event)));
    if (gesture && Math.abs(px - gesture.from) > 5) gesture.kind = gesture.mouse ? "select" : "slide";
    if (gesture?.kind === "select") {
      const box = { x: Math.min(px, gesture.from), y: frame.top, width: Math.abs(px - gesture.from), height: frame.bottom - frame.top };
      for (const [key, value] of Object.entries(box)) selection.setAttribute(key, value);
      selection.setAttribute("visibility", "visible");
      gesture.to = px;
    } else {
      point(event);
    }
  });
});
const release = (event) => {
  pointers.delete(event.pointerId);
  selection.setAttribute("visibility", "hidden");
  const done = gesture;
  gesture = pointers.size ? { kind: "slide", from: across(event) } : null;
  return done;
};
plot.addEventListener("pointerup", (event) => {
  const done = release(event);
  if (done?.kind === "select" && Math.abs(done.to - done.from) > 5) {
    zoomTo(positionAt(Math.min(done.from, done.to)), positionAt(Math.max(done.from, done.to)));
  } else if (done?.kind === "press") {
    const at = momentAt(across(event));
    show(at);
    hold(true);
    const index = operations.length ? bufferAt(at, bytesAt(event)) : -1;
    if (index >= 0) togglePin(index);
  }
  if (event.pointerType !== "mouse") leave();
});
plot.addEventListener("pointercancel", release);
plot.addEventListener("pointerleave", leave);
const showAll = () => zoomTo(...full());
plot.addEventListener("dblclick", showAll);
plot.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY / 200), positionAt(across(event)));
  } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    const by = ((view.to - view.from) * event.deltaX) / (frame.right - frame.left);
    zoomTo(view.from + by, view.to + by);
  }
}, { passive: false });

const overview = find("overview");
const pan = (event) => {
  const [from, to] = full();
  const centre = from + ((to - from) * (across(event) - frame.left)) / (frame.right - frame.left);
  zoomTo(centre - (view.to - view.from) / 2, centre + (view.to - view.from) / 2);
};
overview.addEventListener("pointerdown", (event) => {
  overview.setPointerCapture(event.pointerId);
  pan(event);
});
overview.addEventListener("pointermove", (event) => { if (event.buttons) pan(event); });

const keepInView = () => {
  const position = middle(state.at);
  const width = view.to - view.from;
  if (position < view.from || position > view.to) zoomTo(position - width / 2, position + width / 2);
};
const go = (at) => {
  show(at);
  keepInView();
};
const peak = () => {
  if (operations.length) return report.prediction.peak_at;
  return samples.reduce((best, sample, at) => (sample.bytes > samples[best].bytes ? at : best), 0);
};
find("hold").addEventListener("click", () => hold(!state.held));
find("to-peak").addEventListener("click", () => { go(peak()); hold(true); });
find("zoom-in").addEventListener("click", () => zoomBy(2, middle(state.at)));
find("zoom-out").addEventListener("click", () => zoomBy(0.5, middle(state.at)));
find("zoom-all").addEventListener("click", showAll);
for (const band of chart.bands.length <= 4 ? chart.bands : []) {
  const button = element("button", band.phase);
  button.type = "button";
  button.title = `zoom to ${band.phase}`;
  button.addEventListener("click", () => zoomTo(positionOf(band.from), positionOf(band.to)));
  find("zoom").append(button);
}
plot.addEventListener("keydown", (event) => {
  const far = event.shiftKey ? 25 : 1;
  const steps = {
    ArrowLeft: state.at - far, ArrowDown: state.at - far, ArrowRight: state.at + far, ArrowUp: state.at + far,
    PageDown: state.at - 100, PageUp: state.at + 100, Home: 0, End: moments - 1,
  };
  const others = {
    "+": () => zoomBy(2, middle(state.at)), "=": () => zoomBy(2, middle(state.at)), "-": () => zoomBy(0.5, middle(state.at)),
    "0": showAll, Enter: () => hold(!state.held),
    Escape: () => { hold(false); state.pins = []; showPins(); showAll(); },
  };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in steps) go(steps[event.key]);
  else if (event.key in others) others[event.key]();
  else return;
  event.preventDefault();
});

if (operations.length) {
  const names = new Set();
  for (const buffer of buffers) {
    if (!buffer.path) continue;
    const parts = pattern(buffer).split(".");
    for (let length = 1; length <= Math.min(3, parts.length); length++) names.add(parts.slice(0, length).join("."));
  }
  find("modules").append(...[...names].sort().slice(0, 400).map((name) => {
    const option = element("option");
    option.value = name;
    return option;
  }));
  find("filter").addEventListener("input", () => {
    state.filter = find("filter").value.trim();
    const count = buffers.filter(matches).length;
    say("said", `${count} of ${buffers.length} buffers`);
    find("filter").classList.toggle("empty", !count);
    stack();
    draw();
    show(state.at, true);
    const text = state.filter.toLowerCase();
    for (const module of document.querySelectorAll("#largest details.module")) {
      const layers = [...module.querySelectorAll("details.layer")];
      // A layer also has the paths of its tensors in it, without stars.
      for (const layer of layers) layer.hidden = !layer.textContent.toLowerCase().includes(text);
      module.hidden = !layers.some((layer) => !layer.hidden);
    }
  });
  find("axis-field").hidden = chart.axis === "operation";
  find("axis").addEventListener("change", () => {
    const part = (view.to - view.from) / (full()[1] - full()[0]);
    state.axis = find("axis").value;
    const [from, to] = full();
    if (part >= 1) zoomTo(from, to);
    else zoomTo(middle(state.at) - ((to - from) * part) / 2, middle(state.at) + ((to - from) * part) / 2);
  });
}
if (chart.axis === "operation") state.axis = "operation";

for (const drawn of document.querySelectorAll(".drawn")) drawn.remove();
for (const id of ["toolbar", "timeline", "hint", "moment"]) find(id).removeAttribute("hidden");
Object.assign(view, { from: full()[0], to: full()[1] });
stack();
draw();
show(peak());
let width = frame.width;
new ResizeObserver(() => {
  if (find("stage").clientWidth !== width) {
    width = find("stage").clientWidth;
    draw();
  }
}).observe(find("stage"));
