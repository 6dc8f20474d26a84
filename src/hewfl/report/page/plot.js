/* One way to draw a panel: ticks, frame and names of the axes around an area that cuts
   off what leaves it. */

/* Fills an svg; `x` and `y` have ticks as [pixel, text] and a name, `y` lines across
   unless it is `plain`. */
function panel(svg, box, x, y) {
  const { width, height, left, right, top, bottom } = box;
  const [base, end] = [height - bottom, width - right];
  const area = make("svg", {
    ...{ x: left, y: top, width: end - left, height: base - top },
    viewBox: `${left} ${top} ${end - left} ${base - top}`,
  });
  const middle = (top + base) / 2;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
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
    make(
      "text",
      { class: "name", x: (left + end) / 2, y: height - 6, "text-anchor": "middle" },
      x.name,
    ),
    make(
      "text",
      {
        ...{ class: "name", x: 12, y: middle, "text-anchor": "middle" },
        transform: `rotate(-90 12 ${middle})`,
      },
      y.name ?? "",
    ),
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

/* Places for names at the ends of lines: near where they belong, none on another. */
function spreadOut(ends, low, high, step) {
  const sorted = [...ends].sort((a, b) => a.y - b.y);
  let free = low;
  for (const end of sorted) {
    end.at = Math.max(end.y, free);
    free = end.at + step;
  }
  let most = high;
  for (const end of sorted.reverse()) {
    end.at = Math.min(end.at, most);
    most = end.at - step;
  }
  return sorted;
}
