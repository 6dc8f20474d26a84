"use strict";
/* Elements of the page. Text goes in as text nodes only, so that no label can become
   markup. */

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = ["svg", "g", "path", "line", "text", "rect", "circle", "image", "title"];
const MARKS = {
  circle: "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0Z",
  square: "M-2.6,-2.6h5.2v5.2h-5.2Z",
  triangle: "M0,-3.4L3.2,2.6H-3.2Z",
  diamond: "M0,-3.6L3,0L0,3.6L-3,0Z",
  cross: "M-2.8,-2.8L2.8,2.8M2.8,-2.8L-2.8,2.8",
  plus: "M-3.4,0H3.4M0,-3.4V3.4",
  wedge: "M0,3.4L3.2,-2.6H-3.2Z",
};

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

function chooser(text, options, onchange) {
  const select = make(
    "select",
    { onchange: () => onchange(select.value) },
    ...options.map(([value, name]) => make("option", { value }, name)),
  );
  return make("label", {}, text, select);
}

function checkbox(text, checked, onchange) {
  const input = make("input", {
    type: "checkbox",
    checked,
    onchange: () => onchange(input.checked),
  });
  return make("label", {}, input, text);
}

const button = (text, onclick, more = {}) =>
  make("button", { type: "button", onclick, ...more }, text);

/* A mark of a line's variant, at a place. */
const mark = (kind, colour, x, y) =>
  make("path", {
    class: `mark ${colour}`,
    d: MARKS[kind],
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
  });

function swatch(method) {
  const line = make("line", {
    ...{ x1: 0, y1: 5, x2: 34, y2: 5, "stroke-width": method.width },
    "stroke-dasharray": method.dash.join(" ") || "none",
  });
  const found = make(
    "svg",
    { class: `swatch ${method.colour}`, viewBox: "0 0 34 10", "aria-hidden": "true" },
    line,
  );
  if (method.marker) found.append(mark(method.marker, method.colour, 17, 5));
  return found;
}

/* A tip to the side of the pointer where there is more room. */
function putBeside(tip, width, x, top) {
  const isRight = x > width / 2;
  tip.style.top = `${top}px`;
  tip.style.left = isRight ? "auto" : `${x + 14}px`;
  tip.style.right = isRight ? `${width - x + 14}px` : "auto";
}
