/* The report shows everything without this script. It adds the values under the pointer, zoom, and the filter of metrics. */

const plots = JSON.parse(document.getElementById("numbers").textContent);
const tip = document.getElementById("tip");
const WIDTH = 1000, HEIGHT = 150, MARGIN = 0.06, TICKS = 5;
const NS = "http://www.w3.org/2000/svg";
let zoomed = null;

/* Words */

function short(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  return String(Number(value.toPrecision(4)));
}
function written(value, unit) {
  if (unit === "seconds") {
    const [factor, name] = value < 1e-3 ? [1e6, "us"] : value < 1 ? [1e3, "ms"] : value < 300 ? [1, "s"] : [1 / 60, "min"];
    return `${short(value * factor)} ${name}`;
  }
  if (unit === "bytes") {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let rest = value;
    while (rest >= 999.5 && units.length > 1) { rest /= 1000; units.shift(); }
    return `${Number(rest.toPrecision(3))} ${units[0]}`;
  }
  return short(value);
}
function span(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const stepOf = (step, most) => (most >= 20000 && step ? `${short(step / 1000)}k` : short(step));

/* The tip */

function show(text, event) {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(event.pageX + 14, scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(scrollX + 8, left)}px`;
  tip.style.top = `${event.pageY + 16}px`;
}
function hide() { tip.hidden = true; }

/* Plots */

function make(name, attributes, parent) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * (1 - 1e-9));
}

/** The index of the point of a curve that is next to x. */
function nearest(curve, x) {
  let best = -1;
  curve.x.forEach((at, index) => {
    if (curve.y[index] !== null && (best < 0 || Math.abs(at - x) < Math.abs(curve.x[best] - x))) best = index;
  });
  return best;
}

class Figure {
  constructor(element) {
    this.plot = plots[Number(element.dataset.plot)];
    this.frame = element.querySelector(".plot");
    if (!this.frame) return;
    this.svg = element.querySelector(".plot-area");
    this.area = element.querySelector(".area");
    this.whole = this.area.innerHTML;
    this.axes = [this.svg, element.querySelector(".y-axis")].map((one) => [one, [...one.querySelectorAll(":scope > text")]]);
    this.x = this.plot.x;
    this.begun = null;
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerleave", () => { this.clear(); hide(); });
    this.svg.addEventListener("pointerdown", (event) => { if (event.pointerType !== "touch") this.begun = this.at(event); });
    this.svg.addEventListener("pointerup", (event) => this.end(event));
    this.svg.addEventListener("dblclick", () => zoom(null));
  }
  at(event) {
    const box = this.svg.getBoundingClientRect();
    return this.x[0] + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (this.x[1] - this.x[0]);
  }
  place(x) { return WIDTH * (x - this.x[0]) / (this.x[1] - this.x[0]); }
  clear() { this.area.querySelectorAll(".pointer, .picked").forEach((one) => one.remove()); }
  move(event) {
    const x = this.at(event);
    this.clear();
    if (this.begun !== null) {
      const [low, high] = [this.begun, x].sort((one, other) => one - other);
      make("rect", {class: "picked", x: this.place(low), width: this.place(high) - this.place(low), y: 0, height: HEIGHT}, this.area);
    }
    const lines = [];
    for (const curve of this.plot.curves) {
      const index = nearest(curve, x);
      if (index < 0) continue;
      if (!lines.length) {
        const at = this.place(curve.x[index]);
        make("line", {class: "pointer", x1: at, x2: at, y1: 0, y2: HEIGHT}, this.area);
      }
      const where = this.plot.axis === "time" ? span(curve.x[index]) : `step ${short(curve.x[index])}`;
      lines.push(`${where}: ${written(curve.y[index], this.plot.unit)}${curve.name && this.plot.curves.length > 1 ? ` (${curve.name})` : ""}`);
    }
    if (lines.length) show(lines.join("\n"), event);
  }
  end(event) {
    const begun = this.begun, x = this.at(event);
    this.begun = null;
    if (begun !== null && Math.abs(x - begun) > 0.02 * (this.x[1] - this.x[0])) zoom([begun, x].sort((one, other) => one - other), this.plot.axis);
  }
  /** Draws a part of the axis, or, without one, what the page was made with. */
  draw(range) {
    if (!this.frame) return;
    this.x = range ?? this.plot.x;
    for (const [svg, texts] of this.axes) {
      svg.querySelectorAll(":scope > text").forEach((one) => one.remove());
      if (!range) svg.append(...texts);
    }
    if (!range) { this.area.innerHTML = this.whole; return; }
    this.area.replaceChildren();
    const [low, high] = this.heights();
    const y = (value) => HEIGHT * (1 - (value - low) / (high - low));
    const step = roundStep((high - low) / 4);
    for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
      make("line", {class: "grid", x1: 0, x2: WIDTH, y1: y(value), y2: y(value)}, this.area);
      make("text", {x: "100%", y: y(value) + 4, "text-anchor": "end"}, this.axes[1][0]).textContent =
        written(Number(value.toPrecision(12)), this.plot.unit);
    }
    const wide = Math.max(this.plot.axis === "step" ? 1 : 0, roundStep((range[1] - range[0]) / TICKS));
    for (let value = Math.ceil(range[0] / wide) * wide; value <= range[1]; value += wide) {
      const part = (value - range[0]) / (range[1] - range[0]), anchor = part < 0.03 ? "start" : part > 0.97 ? "end" : "middle";
      make("text", {x: `${100 * part}%`, y: HEIGHT + 15, "text-anchor": anchor}, this.svg).textContent =
        this.plot.axis === "time" ? span(value) : stepOf(Number(value.toPrecision(12)), range[1]);
    }
    this.plot.curves.forEach((curve, number) => {
      let path = "", down = false;
      curve.x.forEach((at, index) => {
        const value = curve.y[index];
        if (value === null) { down = false; return; }
        path += `${down ? "L" : "M"}${this.place(at).toFixed(1)} ${y(value).toFixed(1)}`;
        down = true;
      });
      make("path", {class: `curve k${number}`, d: path}, this.area);
    });
  }
  /** The least and the greatest value in the present part, with a margin. */
  heights() {
    const values = this.plot.curves.flatMap((curve) =>
      curve.y.filter((value, index) => value !== null && curve.x[index] >= this.x[0] && curve.x[index] <= this.x[1]));
    if (!values.length) return [0, 1];
    if (this.plot.unit === "bytes") return [0, (1 + MARGIN) * Math.max(...values) || 1];
    const low = Math.min(...values), high = Math.max(...values), wide = high - low || Math.abs(low) || 1;
    return [low - MARGIN * wide, high + MARGIN * wide];
  }
}

const figures = [...document.querySelectorAll("figure[data-plot]")].map((one) => new Figure(one));

function zoom(range, axis) {
  zoomed = range;
  hide();
  for (const figure of figures) if (!range || figure.plot.axis === axis) figure.draw(range);
}

/* The timelines: the rank, the time and the part under the pointer. */

for (const frame of document.querySelectorAll(".timeline")) {
  const svg = frame.querySelector(".lanes"), area = frame.querySelector(".area"), lanes = JSON.parse(frame.dataset.lanes);
  const names = new Map([...(frame.previousElementSibling?.children ?? [])].map((one) => [one.firstChild.classList[1], one.textContent]));
  const paths = [...area.querySelectorAll("path")].reverse();
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), y = event.clientY - box.top;
    const lane = lanes.filter(([, top]) => top <= y).at(-1), part = (event.clientX - box.left) / box.width;
    if (!lane || part < 0 || part > 1 || y > area.getBoundingClientRect().height) { hide(); return; }
    const point = area.createSVGPoint();
    [point.x, point.y] = [part * WIDTH, y];
    const under = paths.find((path) => path.isPointInFill(point));
    show(`${lane[0]}, ${span(part * Number(frame.dataset.seconds))}${under ? `: ${names.get(under.classList[0]) ?? ""}` : ""}`, event);
  });
  svg.addEventListener("pointerleave", hide);
}

/* The filter */

const filter = document.getElementById("filter");
if (filter) {
  document.querySelectorAll(".script").forEach((one) => { one.hidden = false; });
  filter.addEventListener("input", () => {
    const word = filter.value.trim().toLowerCase();
    document.querySelectorAll("figure[data-name]").forEach((one) => { one.hidden = !one.dataset.name.toLowerCase().includes(word); });
  });
}
addEventListener("keydown", (event) => { if (event.key === "Escape") zoom(null); });
