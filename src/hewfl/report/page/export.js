/* Figures and tables as files: SVG, PNG, CSV and LaTeX, made here and saved from here. */

const KEPT = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray"],
  ...["stroke-opacity", "opacity", "font-size", "font-weight", "font-family", "text-anchor"],
];

/* A menu that saves something: `svg` or a table, `rows`, `latex`, a `name`. */
function exporter({ name, svg, rows, latex, draw = () => {} }) {
  const text = (ending, type, make_) =>
    button(ending, () => save(name(), ending, new Blob([make_()], { type })));
  const drawn = () => onPaper(draw, () => standalone(svg()));
  return make(
    "details",
    { class: "export" },
    make("summary", { "aria-label": `Save ${name()}` }, "Save"),
    button("SVG", () => save(name(), "svg", new Blob([drawn()], { type: "image/svg+xml" }))),
    button("PNG", () => asPng(drawn(), (blob) => save(name(), "png", blob))),
    text("CSV", "text/csv", () => rows().map((row) => row.map(quoted).join(",")).join("\n") + "\n"),
    text("LaTeX", "application/x-tex", latex),
  );
}

function save(name, ending, blob) {
  const kind = { LaTeX: "tex" }[ending] ?? ending.toLowerCase();
  const stem = name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80);
  const href = URL.createObjectURL(blob);
  const link = make("a", { href, download: `${stem || "figure"}.${kind}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/* Whatever the reader's scheme, files are dark on white. */
function onPaper(draw, make_) {
  document.documentElement.classList.add("light");
  draw();
  const found = make_();
  document.documentElement.classList.remove("light");
  draw();
  return found;
}

/* A drawing that needs no style sheet. */
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((element, k) => {
    const style = getComputedStyle(element);
    for (const key of KEPT) to[k].setAttribute(key, style.getPropertyValue(key));
    for (const key of ["class", "tabindex", "role", "aria-label"]) to[k].removeAttribute(key);
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  for (const [key, value] of Object.entries({ xmlns: SVG, width, height }))
    copy.setAttribute(key, value);
  copy.prepend(make("rect", { width, height, fill: "#ffffff", stroke: "none" }));
  return new XMLSerializer().serializeToString(copy);
}

function asPng(text, done) {
  const image = new Image();
  image.onload = () => {
    const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
    const pen = canvas.getContext("2d");
    pen.scale(2, 2);
    pen.drawImage(image, 0, 0);
    canvas.toBlob(done, "image/png");
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

const quoted = (cell) => {
  const text = cell === null || cell === undefined ? "" : String(cell);
  return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};

/* ------------------------------------------------------------------ tables */

/* The text of a cell; smaller lines of it come after a semicolon. */
function said(cell) {
  const copy = cell.cloneNode(true);
  for (const line of copy.querySelectorAll("small, .method + .method"))
    if (line.previousSibling || line.parentNode !== copy) line.prepend("; ");
  return copy.textContent.replace(/\s+/g, " ").replace(/^; /, "").trim();
}

function tableExporter(table) {
  const caption = table.caption.textContent;
  return exporter({
    name: () => caption.slice(0, 70),
    svg: () => tableSvg(table),
    rows: () => [...table.rows].map((row) => [...row.cells].map(said)),
    latex: () => tableLatex(table, caption),
  });
}

/* A table as a drawing, laid out by the length of its texts. */
function tableSvg(table) {
  const rows = [...table.rows].map((row) => [...row.cells]);
  const wide = (cell) => 7.2 * said(cell).length + (cell.querySelector("svg") ? 52 : 0) + 22;
  const widths = rows[0].map((_, c) => Math.max(...rows.map((row) => wide(row[c]))));
  const lefts = widths.map((_, c) => 10 + widths.slice(0, c).reduce((a, b) => a + b, 0));
  const [width, height] = [widths.reduce((a, b) => a + b, 20), 24 * rows.length + 12];
  const svg = make("svg", { class: "drawn", viewBox: `0 0 ${width} ${height}` });
  rows.forEach((row, r) =>
    row.forEach((cell, c) => {
      const picture = cell.querySelector("svg");
      const line = 24 * r + 22;
      const bold = r === 0 || cell.querySelector("strong") ? 700 : 400;
      if (picture) {
        const [, , w, h] = picture.getAttribute("viewBox").split(" ").map(Number);
        const copy = picture.cloneNode(true);
        for (const [key, value] of Object.entries({ x: lefts[c], y: line - 4 - h / 2, width: w, height: h }))
          copy.setAttribute(key, value);
        svg.append(copy);
      }
      const x = lefts[c] + (picture && said(cell) ? 44 : 0);
      svg.append(make("text", { x, y: line, "font-weight": bold }, said(cell)));
    }),
  );
  svg.append(make("line", { class: "frame", x1: 8, x2: width - 8, y1: 31, y2: 31 }));
  document.body.append(svg); // styles are known in the page alone
  requestAnimationFrame(() => svg.remove());
  return svg;
}

const SYMBOLS = {
  ...{ "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" },
  ...{ "±": "$\\pm$", "≤": "$\\leq$", "×": "$\\times$", "·": "$\\cdot$", "λ": "$\\lambda$" },
  ...{ "▲": "$\\blacktriangle$", "▼": "$\\blacktriangledown$", "−": "$-$", "—": "---", "–": "--" },
  ...{ "η": "$\\eta$", "κ": "$\\kappa$", "α": "$\\alpha$", "…": "\\dots{}", "³": "$^3$" },
};
const tex = (text) =>
  [...String(text)]
    .map((c) => SYMBOLS[c] ?? (/[#$%&_{}]/.test(c) ? `\\${c}` : c))
    .join("");

function tableLatex(table, caption) {
  const [head, ...body] = [...table.rows].map((row) =>
    [...row.cells].map((cell) => {
      const text = tex(said(cell));
      return cell.querySelector("strong") ? `\\textbf{${text}}` : text;
    }),
  );
  const line = (row) => `    ${row.join(" & ")} \\\\`;
  return [
    "% \\usepackage{booktabs,amssymb}",
    "\\begin{table}",
    "  \\centering",
    `  \\caption{${tex(caption)}}`,
    `  \\begin{tabular}{l${"r".repeat(head.length - 1)}}`,
    "    \\toprule",
    line(head),
    "    \\midrule",
    ...body.map(line),
    "    \\bottomrule",
    "  \\end{tabular}",
    "\\end{table}",
    "",
  ].join("\n");
}

/* ------------------------------------------------------------------ pgfplots */

const pgf = (options, body) =>
  [
    "% \\usepackage{pgfplots} \\pgfplotsset{compat=1.18}",
    "\\begin{tikzpicture}",
    `\\begin{axis}[${options.join(", ")}]`,
    ...body,
    "\\end{axis}",
    "\\end{tikzpicture}",
    "",
  ].join("\n");

function curvesLatex(run, state, shown, inside, isLog) {
  const axis = run.axes.find((a) => a.key === state.axis).name;
  const body = shown.flatMap(({ method, points, leads }, k) => {
    const kept = points.filter((p) => inside(p) && p.value && (!isLog || p.value.mean > 0));
    const [r, g, b] = inkOf(document.body, method.colour);
    const dash = method.dash.length
      ? `, dash pattern=${method.dash.map((d, i) => `${i % 2 ? "off" : "on"} ${d}pt`).join(" ")}`
      : "";
    return [
      `\\definecolor{line${k}}{RGB}{${r},${g},${b}}`,
      `\\addplot[line${k}, ${leads ? "very thick" : "thin"}${dash}] coordinates {`,
      `  ${kept.map((p) => `(${p.x},${p.value.mean})`).join(" ")}`,
      `}; \\addlegendentry{${tex(method.label)}}`,
    ];
  });
  const options = [`xlabel={${tex(axis)}}`, `ylabel={${tex(state.quantity.name)}}`];
  return pgf([...options, ...(isLog ? ["ymode=log"] : []), "legend pos=outer north east"], body);
}

function mapLatex(view, rounds) {
  const cells = view.cells.flatMap((row, r) =>
    rounds.map((round, t) => `${round} ${r} ${row[t] ?? "nan"}`),
  );
  const options = ["xlabel={round}", "ylabel={row}", "y dir=reverse", "colorbar", "colormap/Blues"];
  return pgf(options, [
    `\\addplot[matrix plot*, point meta=explicit, mesh/cols=${rounds.length}] table[meta=w] {`,
    "x y w",
    ...cells,
    "};",
  ]);
}

function barsLatex(values) {
  const names = values.map(([name]) => name).join(",");
  const at = (k) => values.map((row) => `({${row[0]}},${row[k]})`).join(" ");
  return pgf(["ybar", `symbolic x coords={${names}}`, "xtick=data", "xlabel={local steps $H$}"], [
    `\\addplot coordinates {${at(1)}}; \\addlegendentry{weight}`,
    `\\addplot coordinates {${at(2)}}; \\addlegendentry{equal weights}`,
  ]);
}
