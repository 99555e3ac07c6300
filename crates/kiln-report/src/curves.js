// Values of all charts at the step under the pointer, in their legends.
const charts = JSON.parse(document.getElementById('charts').textContent).map((data) => {
  const figure = document.getElementById('chart-' + data.id);
  const plot = figure.querySelector('.plot'), cursor = figure.querySelector('.cursor');
  const shown = [...figure.querySelectorAll('.legend b')];
  const dots = data.lines.map((line) => {
    const dot = document.createElement('i');
    dot.className = 'dot';
    dot.hidden = true;
    dot.style.background = `var(--c${line.color})`;
    return plot.appendChild(dot);
  });
  const title = figure.querySelector('h3');
  return { data, figure, plot, cursor, shown, dots, title, name: title.textContent, last: shown.map((b) => b.textContent) };
});

// The index of the step that is nearest.
function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - steps[low - 1] <= steps[low] - step ? low - 1 : low;
}

function place(chart, value) {
  const log = chart.figure.querySelector('.switch input')?.checked;
  const [low, high] = chart.data.scales[log ? 'log' : 'lin'];
  const part = log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.min(1, Math.max(0, part));
}

let current = null;

function show(step) {
  current = step;
  for (const chart of charts) {
    const { data, cursor, shown, dots, title } = chart;
    const [from, to] = data.steps;
    cursor.hidden = step === null || step < from || step > to;
    title.textContent = step === null ? chart.name : `${chart.name} at step ${Math.round(step).toLocaleString('en')}`;
    if (!cursor.hidden) cursor.style.left = `${100 * (step - from) / (to - from)}%`;
    data.lines.forEach((line, index) => {
      const at = step === null ? -1 : nearest(line.steps, step);
      const outside = at >= 0 && step > line.steps[line.steps.length - 1] + (to - from) / 100;
      if (shown[index]) shown[index].textContent = at < 0 ? chart.last[index] : outside ? '-' : line.text[at];
      dots[index].hidden = at < 0 || outside;
      if (!dots[index].hidden) {
        dots[index].style.bottom = `${100 * place(chart, line.values[at])}%`;
        dots[index].style.left = `${100 * (line.steps[at] - from) / (to - from)}%`;
      }
    });
  }
}

// The steps that a chart has values of.
const stops = (chart) => [...new Set(chart.data.lines.flatMap((line) => line.steps))].sort((a, b) => a - b);

for (const chart of charts) {
  const { plot, data, figure } = chart;
  const [from, to] = data.steps;
  const follow = (event) => {
    const box = plot.getBoundingClientRect();
    const step = from + (to - from) * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const steps = stops(chart);
    show(steps[nearest(steps, step)]);
  };
  plot.addEventListener('pointermove', follow);
  plot.addEventListener('pointerdown', follow);
  plot.addEventListener('pointerleave', (event) => { if (event.pointerType === 'mouse') show(null); });
  plot.addEventListener('blur', () => show(null));
  plot.addEventListener('keydown', (event) => {
    const steps = stops(chart), last = steps.length - 1;
    const at = current === null ? last : nearest(steps, current);
    const page = Math.max(1, Math.round(steps.length / 10));
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - page, PageDown: at + page, Home: 0, End: last }[event.key];
    if (event.key === 'Escape') show(null);
    if (to === undefined) return;
    event.preventDefault();
    show(steps[Math.min(last, Math.max(0, to))]);
  });
  figure.querySelector('.switch input')?.addEventListener('change', () => show(current));
}
