/* Numbers as text, means over seeds, scales and their ticks. */

const raised = (power) =>
  String(power).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));

function show(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) {
    const [front, power] = value.toExponential(digits - 1).split("e");
    const short = String(Number(front));
    return (short === "1" ? "" : `${short}×`) + `10${raised(Number(power))}`;
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

function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = share * (sorted.length - 1);
  const [low, part] = [Math.floor(at), at % 1];
  return sorted[low] + part * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
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
  const every = Math.max(1, Math.ceil(decades / 10));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) {
    ticks.push(...fronts.map((front) => Number(`${front}e${power}`)));
  }
  const found = ticks.filter((tick) => tick >= low && tick <= high);
  return found.length > 1 ? found : niceTicks(low, high, 6);
}

/* From values to pixels; `back` is the way back. */
function scale(low, high, from, to, log = false) {
  const [f, g] = log ? [Math.log10, (v) => 10 ** v] : [(v) => v, (v) => v];
  const [a, width] = [f(low), f(high) - f(low) || 1];
  const forth = (value) => from + ((f(value) - a) / width) * (to - from);
  forth.back = (pixel) => g(a + ((pixel - from) / (to - from)) * width);
  return forth;
}
