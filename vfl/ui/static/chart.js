// A small curve, drawn by uPlot in the page's colours.

const WHOLE = [1, 2, 5].flatMap((step) => Array.from({ length: 9 }, (_, power) => step * 10 ** power)).sort((a, b) => a - b);
const dark = window.matchMedia("(prefers-color-scheme: dark)");

export class Chart {
  constructor(element, names, colours) {
    this.element = element;
    this.names = names;
    this.colours = colours;
    this.data = [[], ...names.map(() => [])];
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(element);
    dark.addEventListener("change", () => this.draw());
  }

  // curves: one list of [x, y] for each name; an x that a curve lacks is bridged.
  show(curves) {
    const xs = [...new Set(curves.flatMap((curve) => curve.map(([x]) => x)))].sort((a, b) => a - b);
    const columns = curves.map((curve) => {
      const at = new Map(curve);
      return xs.map((x) => at.get(x) ?? null);
    });
    this.data = [xs, ...columns];
    if (this.plot) this.plot.setData(this.data);
    else if (xs.length) this.draw();
    const last = curves.map((curve, i) => (curve.length ? `${this.names[i]} ${curve.at(-1)[1].toPrecision(4)}` : ""));
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", `A curve; last: ${last.filter(Boolean).join(", ")}`);
  }

  draw() {
    if (!this.data[0].length) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    this.plot?.destroy();
    this.plot = new window.uPlot({
      ...this.size(),
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false } },
      axes: [{ ...axis, size: 26, grid: { show: false }, incrs: WHOLE }, { ...axis, size: 46 }],
      series: [{}, ...this.names.map((name, i) => ({
        label: name, stroke: colour(this.colours[i]), width: 2, spanGaps: true, points: { show: (plot) => plot.data[0].length < 24, size: 5 },
      }))],
    }, this.data, this.element);
  }

  size() {
    return { width: this.element.clientWidth, height: this.element.clientHeight };
  }
}
