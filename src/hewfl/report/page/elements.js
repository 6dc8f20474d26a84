"use strict";
/* Elements, numbers as text, scales and ticks. Text goes in as text nodes only, so that
   no label can become markup. */

const { marks: MARKS, runs, panels } = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const DRAWN = ["svg", "g", "path", "line", "text", "rect", "circle", "image"];

function make(tag, attributes = {}, ...children) {
  const element = DRAWN.includes(tag)
    ? document.createElementNS(SVG, tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function chooser(text, options, chosen, onchange) {
  const select = make(
    "select",
    { onchange: () => onchange(select.value) },
    ...options.map(([value, name]) =>
      make("option", { value, selected: String(value) === String(chosen) }, name),
    ),
  );
  return make("label", {}, text, select);
}

function checkbox(text, checked, onchange) {
  const input = make("input", {
    ...{ type: "checkbox", checked, onchange: () => onchange(input.checked) },
  });
  return make("label", {}, input, text);
}

const button = (text, onclick, more = {}) =>
  make("button", { type: "button", onclick, ...more }, text);

const mark = (kind, colour, x, y) =>
  make("path", {
    ...{ class: `mark ${colour}`, d: MARKS[kind] },
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
  });

const strokes = (method) => method.dash.join(" ") || "none";

function swatch(method) {
  const line = { d: "M0 5H34", "stroke-width": method.width, "stroke-dasharray": strokes(method) };
  const svg = make(
    "svg",
    { class: `swatch ${method.colour}`, viewBox: "0 0 34 10", "aria-hidden": "true" },
    make("path", line),
  );
  if (method.marker) svg.append(mark(method.marker, method.colour, 17, 5));
  return svg;
}

function show(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) {
    const [front, power] = value.toExponential(digits - 1).split("e");
    const raised = String(Number(power)).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
    return (Number(front) === 1 ? "" : `${Number(front)}×`) + `10${raised}`;
  }
  return String(Number(value.toPrecision(digits)));
}

/* Mean and standard deviation over seeds; nothing where a seed has no value. */
function statistics(values) {
  if (values.includes(null)) return null;
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const squares = values.reduce((a, b) => a + (b - mean) ** 2, 0);
  return { mean, spread: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0 };
}

function niceTicks(low, high, most) {
  const raw = (high - low) / Math.max(1, most);
  if (!(raw > 0)) return [low];
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((k) => k * unit >= raw * (1 - 1e-9)) * unit;
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const fronts = decades > 4 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 3, 5, 7];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += Math.max(1, Math.ceil(decades / 10)))
    ticks.push(...fronts.map((front) => Number(`${front}e${power}`)));
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  return inside.length > 1 ? inside : niceTicks(low, high, 6);
}

/* From values to pixels; `back` is the way back. */
function scale(low, high, from, to, log = false) {
  const [f, g] = log ? [Math.log10, (v) => 10 ** v] : [(v) => v, (v) => v];
  const [a, width] = [f(low), f(high) - f(low) || 1];
  const forth = (value) => from + ((f(value) - a) / width) * (to - from);
  forth.back = (pixel) => g(a + ((pixel - from) / (to - from)) * width);
  return forth;
}

/* Fills an svg with frame, ticks as [pixel, text] and names of the axes; returns the
   area inside, which cuts off what leaves it. */
function panel(svg, box, x, y) {
  const { width, height, left, right, top, bottom } = box;
  const [base, end] = [height - bottom, width - right];
  const area = make("svg", {
    ...{ x: left, y: top, width: end - left, height: base - top },
    viewBox: `${left} ${top} ${end - left} ${base - top}`,
  });
  const name = (text, more) => make("text", { class: "name", "text-anchor": "middle", ...more }, text);
  const middle = (top + base) / 2;
  for (const [key, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height }))
    svg.setAttribute(key, value);
  svg.replaceChildren(
    ...y.ticks.flatMap(([at, text]) => [
      ...(y.plain ? [] : [make("line", { class: "grid", x1: left, x2: end, y1: at, y2: at })]),
      make("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, text),
    ]),
    ...apart(x.ticks).map(([at, text]) =>
      make("text", { x: at, y: base + 17, "text-anchor": "middle" }, text),
    ),
    area,
    make("path", { class: "frame", d: `M${left},${top}V${base}H${end}` }),
    name(x.name, { x: (left + end) / 2, y: height - 6 }),
    name(y.name ?? "", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})` }),
  );
  return area;
}

/* Ticks from left to right without those that would lie on one before. */
function apart(ticks) {
  let free = -Infinity;
  return ticks.filter(([at, text]) => {
    const half = 3.6 * text.length + 2;
    if (at - half < free) return false;
    free = at + half;
    return true;
  });
}

/* A tip to the side of the pointer where there is more room. */
function putBeside(tip, width, x, top) {
  const isRight = x > width / 2;
  tip.style.top = `${top}px`;
  tip.style.left = isRight ? "auto" : `${x + 14}px`;
  tip.style.right = isRight ? `${width - x + 14}px` : "auto";
}
