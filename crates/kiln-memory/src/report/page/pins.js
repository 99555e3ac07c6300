
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
