/* Figures and tables as files, made here and saved from here: all by one button. */

const KEPT = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray"],
  ...["stroke-opacity", "opacity", "font-size", "font-weight", "font-family", "text-anchor"],
];
const offers = []; // what can be saved: run, place, title, name, rows, latex, and svg of figures
const offer = (given) => offers.push(given);

function save(run, name, ending, blob) {
  const stem = `${run.name} ${name}`.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  const href = URL.createObjectURL(blob);
  const link = make("a", { href, download: `${stem.toLowerCase().slice(0, 100) || "figure"}.${ending}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/* The button, and the dialog that it opens: what to save, and as which file. */
function exporter() {
  const select = make("select", {}, ...offers.map((o, k) => make("option", { value: k }, "")));
  const chosen = () => offers[Number(select.value)];
  const text = (ending, type, make_) => () => {
    const { run, name } = chosen();
    save(run, name(), ending, new Blob([make_(chosen())], { type }));
  };
  const csv = ({ rows }) => rows().map((row) => row.map(quoted).join(",")).join("\n") + "\n";
  const drawn = ({ draw, svg }) => onPaper(draw, () => standalone(svg()));
  const asSvg = button("SVG", text("svg", "image/svg+xml", drawn));
  const asPng = button("PNG", () => {
    const { run, name } = chosen();
    rasterise(drawn(chosen()), (blob) => save(run, name(), "png", blob));
  });
  const fit = () => [asSvg, asPng].forEach((b) => (b.disabled = !chosen().svg));
  select.addEventListener("change", fit);
  const dialog = make(
    "dialog",
    { "aria-label": "Export" },
    make("label", {}, "what", select),
    make(
      "p",
      { class: "controls" },
      asSvg,
      asPng,
      button("CSV", text("csv", "text/csv", csv)),
      button("LaTeX", text("tex", "application/x-tex", ({ latex }) => latex())),
    ),
    make("p", { class: "controls" }, button("close", () => dialog.close())),
  );
  const open = () => {
    const many = runs.length > 1;
    [...select.options].forEach((option, k) => {
      option.textContent = (many ? `${offers[k].run.name}: ` : "") + offers[k].title();
    });
    const middle = innerHeight / 2; // the one that the reader looks at comes first
    const far = ({ place }) => {
      const { top, bottom } = place.getBoundingClientRect();
      return place.checkVisibility() ? Math.max(top - middle, middle - bottom, 0) : Infinity;
    };
    const distances = offers.map(far);
    select.value = distances.indexOf(Math.min(...distances));
    fit();
    dialog.showModal();
  };
  return [button("Export", open, { class: "export" }), dialog];
}

/* Whatever the reader's scheme, files are dark on white. */
function onPaper(draw, make_) {
  document.documentElement.classList.add("light");
  draw();
  const made = make_();
  document.documentElement.classList.remove("light");
  draw();
  return made;
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
  for (const [key, value] of Object.entries({ xmlns: SVG, width, height })) copy.setAttribute(key, value);
  copy.prepend(make("rect", { width, height, fill: "#ffffff", stroke: "none" }));
  return new XMLSerializer().serializeToString(copy);
}

function rasterise(text, done) {
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

const said = (cell) => cell.textContent.replace(/\s+/g, " ").trim();

/* The columns of a table that are text, and no pictures. */
function cellsOf(table) {
  const [head, ...body] = [...table.rows].map((row) => [...row.cells]);
  const isText = (_, c) => !body.some((row) => row[c].querySelector(".strip"));
  return [head, ...body].map((row) => row.filter(isText));
}

function offerTable(table) {
  const { name, run } = table.dataset;
  offer({
    ...{ run: runs[Number(run)], place: table, title: () => `Table: ${name}`, name: () => name },
    ...{ rows: () => cellsOf(table).map((row) => row.map(said)), latex: () => tableLatex(table) },
  });
}

const SYMBOLS = {
  ...{ "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" },
  ...{ "±": "$\\pm$", "≤": "$\\leq$", "×": "$\\times$", "·": "$\\cdot$", "λ": "$\\lambda$" },
  ...{ "▲": "$\\blacktriangle$", "▼": "$\\blacktriangledown$", "−": "$-$", "—": "---", "–": "--" },
  ...{ "η": "$\\eta$", "κ": "$\\kappa$", "α": "$\\alpha$", "…": "\\dots{}" },
};
const tex = (text) =>
  [...String(text)].map((c) => SYMBOLS[c] ?? (/[#$%&_{}]/.test(c) ? `\\${c}` : c)).join("");

function tableLatex(table) {
  const [head, ...body] = cellsOf(table).map((row) =>
    row.map((cell) => (cell.querySelector("strong") ? `\\textbf{${tex(said(cell))}}` : tex(said(cell)))),
  );
  const line = (row) => `    ${row.join(" & ")} \\\\`;
  return [
    ...["% \\usepackage{booktabs,amssymb}", "\\begin{table}", "  \\centering"],
    `  \\caption{${tex(table.caption.textContent)}}`,
    `  \\begin{tabular}{l${"r".repeat(head.length - 1)}}`,
    ...["    \\toprule", line(head), "    \\midrule", ...body.map(line), "    \\bottomrule"],
    ...["  \\end{tabular}", "\\end{table}", ""],
  ].join("\n");
}

/* ------------------------------------------------------------------ pgfplots */

const pgf = (options, body) =>
  [
    ...["% \\usepackage{pgfplots} \\pgfplotsset{compat=1.18}", "\\begin{tikzpicture}"],
    ...[`\\begin{axis}[${options.join(", ")}]`, ...body, "\\end{axis}", "\\end{tikzpicture}", ""],
  ].join("\n");

function curvesLatex(shown, inside, isLog, xName, yName) {
  const body = shown.flatMap(({ method, points }, k) => {
    const kept = points.filter((p) => inside(p) && p.value && (!isLog || p.value.mean > 0));
    const dash = method.dash.length
      ? `, dash pattern=${method.dash.map((d, i) => `${i % 2 ? "off" : "on"} ${d}pt`).join(" ")}`
      : "";
    return [
      `\\definecolor{line${k}}{RGB}{${inkOf(document.body, method.colour)}}`,
      `\\addplot[line${k}, line width=${(0.6 * method.width).toFixed(1)}pt${dash}] coordinates {`,
      `  ${kept.map((p) => `(${p.x},${p.value.mean})`).join(" ")}`,
      `}; \\addlegendentry{${tex(method.label)}}`,
    ];
  });
  const options = [`xlabel={${tex(xName)}}`, `ylabel={${tex(yName)}}`];
  return pgf([...options, ...(isLog ? ["ymode=log"] : []), "legend pos=outer north east"], body);
}

function mapLatex(table, rounds) {
  const cells = table.flatMap((row, r) => rounds.map((round, t) => `${round} ${r} ${row[t] ?? "nan"}`));
  const options = ["xlabel={round}", "ylabel={client}", "y dir=reverse", "colorbar", "colormap/Blues"];
  return pgf(options, [
    `\\addplot[matrix plot*, point meta=explicit, mesh/cols=${rounds.length}] table[meta=w] {`,
    ...["x y w", ...cells, "};"],
  ]);
}

function barsLatex(clients, rows, labels) {
  const at = (row) => row.map((w, c) => `({${clients[c]}},${w})`).join(" ");
  return pgf(
    ["ybar", `symbolic x coords={${clients}}`, "xtick=data", "xlabel={client}", "ylabel={weight}"],
    rows.map((row, k) => `\\addplot coordinates {${at(row)}}; \\addlegendentry{${tex(labels[k])}}`),
  );
}
