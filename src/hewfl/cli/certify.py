"""`hewfl certify`: what the theory promises for a federation."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, final

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hewfl.cli.certify_plot import draw_certificate, figure_class
from hewfl.cli.errors import one_line_errors
from hewfl.core.checks import invalid
from hewfl.core.conversion import from_table
from hewfl.theory.case import Case
from hewfl.theory.certificates import Certificate, Promise
from hewfl.theory.certifier import certify as evaluate
from hewfl.theory.systems import System

Numbers = float | tuple[float, ...]
Wholes = int | tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Clients:
    """The clients: a number for all of them, or a list with one entry each.

    Attributes:
        horizon: local steps H_i.
        batch_size: samples per step b_i.
        variance: variance v_i² of a sample gradient, or a bound on it.
        count: how many clients, where nothing is a list.
    """

    horizon: Wholes
    batch_size: Wholes
    variance: Numbers
    count: int | None = None

    def __post_init__(self) -> None:
        """Find the number of clients."""
        listed = (self.horizon, self.batch_size, self.variance)
        lengths = {len(x) for x in listed if isinstance(x, tuple)}
        lengths |= set() if self.count is None else {self.count}
        if len(lengths) != 1 or min(lengths) < 1:
            rule = "one number of clients, by `count` or by lists of one length"
            found = ", ".join(map(str, sorted(lengths))) or "none"
            raise invalid("clients", rule, found)
        object.__setattr__(self, "count", lengths.pop())


@final
@dataclass(frozen=True, slots=True)
class Start:
    """Bounds at the start; `hewfl.theory.Case` has the defaults."""

    gap: float | None = None
    tracking: float | None = None


@final
@dataclass(frozen=True, slots=True)
class Question:
    """What a file may hold; the fields are those of `Case` and `certify`."""

    smoothness: float
    radius: float
    clients: Clients
    start: Start = Start()
    amplitude: float | None = None
    curvature: float | None = None
    target: float | None = None
    rounds: int = 1000
    pl_constant: float | None = None
    similarity: float | None = None
    hessian_lipschitz: float | None = None
    sampling: Literal["one objective", "fresh draws", "fixed shards"] = "fixed shards"
    active: int | None = None
    dimension: int | None = None
    variants: tuple[Literal["printed", "paper", "sharp", "absorbed"], ...] = (
        "paper",
        "sharp",
        "absorbed",
    )

    def answer(self) -> Certificate:
        """The certificate."""
        who = self.clients
        v2 = np.asarray(who.variance) * np.ones(who.count or 1)
        case = Case(
            System(self.smoothness, self.radius, who.horizon, who.batch_size, v2),
            gap=self.start.gap,
            tracking=self.start.tracking,
            pl_constant=self.pl_constant,
            similarity=self.similarity,
            hessian_lipschitz=self.hessian_lipschitz,
            sampling=self.sampling,
            active=self.active,
            dimension=self.dimension,
        )
        return evaluate(
            case,
            self.target,
            rounds=self.rounds,
            amplitude=self.amplitude,
            curvature=self.curvature,
            variants=self.variants,
        )


def certify(  # noqa: PLR0913 - options of a command
    *,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file; options overrule it.")
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="L.")] = None,
    radius: Annotated[float | None, typer.Option(help="R.")] = None,
    horizons: Annotated[
        str | None, typer.Option(help="H_i, one for all or one each: 1,2,4,8.")
    ] = None,
    batch_size: Annotated[str | None, typer.Option(help="b_i, likewise.")] = None,
    variance: Annotated[str | None, typer.Option(help="v_i², likewise.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="n, where nothing is a list.")
    ] = None,
    amplitude: Annotated[
        float | None, typer.Option(help="ϑ; the best one for the target if absent.")
    ] = None,
    curvature: Annotated[
        float | None, typer.Option(help="Λ of the post-local rules.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Gap to reach; a tenth of LR²/2 if absent.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="T, to state bounds at; 1000 if absent.")
    ] = None,
    pl: Annotated[float | None, typer.Option(help="PL constant μ.")] = None,
    similarity: Annotated[
        float | None, typer.Option(help="Bound on ‖∇²F_i − ∇²F‖.")
    ] = None,
    hessian_lipschitz: Annotated[
        float | None, typer.Option(help="Lipschitz constant of the Hessians.")
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="one objective, fresh draws or fixed shards, the last if absent."
        ),
    ] = None,
    active: Annotated[
        int | None, typer.Option(help="Clients in a round; all if absent.")
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Parameters d, to count what is sent.")
    ] = None,
    start_gap: Annotated[
        float | None, typer.Option(help="Bound on the gap at the start; LR²/2.")
    ] = None,
    start_tracking: Annotated[
        float | None, typer.Option(help="Bound on ‖c_i − ∇F_i‖² there; max v_i²/b_i.")
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help="printed, paper, sharp or absorbed constants. Repeatable; all but "
            "printed if absent."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for machines.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the bounds here (.png or .pdf).")
    ] = None,
) -> None:
    """Say which theorems apply to a federation, and what they promise."""
    options: dict[str, Any] = {
        "smoothness": smoothness,
        "radius": radius,
        "amplitude": amplitude,
        "curvature": curvature,
        "target": target,
        "rounds": rounds,
        "pl_constant": pl,
        "similarity": similarity,
        "hessian_lipschitz": hessian_lipschitz,
        "sampling": sampling,
        "active": active,
        "dimension": dimension,
        "variants": variant,
        "start": {"gap": start_gap, "tracking": start_tracking},
    }
    with one_line_errors():
        options["clients"] = {
            "horizon": _numbers("--horizons", horizons),
            "batch_size": _numbers("--batch-size", batch_size),
            "variance": _numbers("--variance", variance),
            "count": clients,
        }
        table = _overruled(_read(config), options)
        if plot is not None:
            figure_class(plot)  # before the work, not after it
        certificate = from_table(Question, table, "").answer()
        if plot is not None:
            draw_certificate(certificate, plot)
    if as_json:
        typer.echo(json.dumps(_plain(certificate), indent=1, allow_nan=False))
        return
    show(certificate, Console())
    if plot is not None:
        typer.echo(f"picture saved in {plot}")


# ------------------------------------------------------------------ reading


def _read(config: Path | None) -> Mapping[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise invalid("config", "a readable TOML file", f"{config}: {error}") from error


def _overruled(table: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The table with options that were given in place of its fields."""
    found = dict(table)
    for name, value in options.items():
        if isinstance(value, Mapping):
            given = {k: v for k, v in value.items() if v is not None}
            if given and isinstance(found.get(name, {}), Mapping):
                found[name] = {**found.get(name, {}), **given}
        elif value is not None:
            found[name] = value
    return found


def _numbers(name: str, text: str | None) -> Any:
    """A number, or the list that commas make."""
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise invalid(name, "numbers separated by commas", repr(text)) from error
    return values if len(values) > 1 else values[0]


def _plain(value: Any) -> Any:
    """A record as JSON can hold it: NaN as null, infinities as "inf" and "-inf"."""
    if is_dataclass(value):
        names = [f.name for f in fields(value)]
        names += ["holds"] if isinstance(value, Promise) else []
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


# ------------------------------------------------------------------ tables


def show(certificate: Certificate, console: Console) -> None:
    """Print the report."""
    c, system = certificate, certificate.case.system
    gap, tracking = c.case.start
    console.print(
        f"\n{system.n} clients, L = {_short(system.L)}, R = {_short(system.R)}: no gap "
        f"exceeds LR²/2 = {_short(system.cap)}.\nStart: gap at most {_short(gap)}, "
        f"squared tracking errors at most {_short(tracking)}. Target: "
        f"{_short(c.target)}.\n{_sentence(c.participation)}",
        highlight=False,
    )
    console.print(_bounds(c))
    for line in _reasons(c):
        console.print(line, highlight=False)
    console.print(_designs(c))
    console.print(_first_rounds(c))
    console.print(_clients(c))
    if c.sent:
        console.print(_sent(c))
    console.print(f"{_verdict(c)}\n", highlight=False)


def _bounds(c: Certificate) -> Table:
    names = ("ϑ", f"T = {c.rounds:,}", "iterated", "T → ∞", "to target")
    table = _table("expected gap over many rounds", ("theorem", "variant"), names)
    for p in c.promises:
        numbers = (p.amplitude, p.value, p.iterated, p.floor, p.rounds_to_target)
        shown = [_short(x) for x in numbers]
        if not p.holds:
            shown = [*["-"] * 4, "fails"]
        elif p.vacuous:
            shown[-1] = "vacuous"
        table.add_row(_heading(c, p), p.variant, *shown)
    return table


def _heading(c: Certificate, promise: Promise) -> str:
    """The label, in the first row of a theorem."""
    first = next(p for p in c.promises if p.label == promise.label)
    return promise.label if promise is first else ""


def _reasons(c: Certificate) -> list[str]:
    """Why theorems do not hold, and which were left out."""
    variants: dict[tuple[str, str], list[str]] = {}
    for p in c.promises:
        broken = [h for h in p.hypotheses if not h.holds and not np.isnan(h.left)]
        parts = [f"{h.name} ({_short(h.left)}, {_short(h.right)})" for h in broken]
        if parts:
            variants.setdefault((p.label, "; ".join(parts)), []).append(p.variant)
    lines = [f"{k[0]} fails ({', '.join(v)}): {k[1]}" for k, v in variants.items()]
    for label, names in c.unasked:
        lines.append(f"{label} was not asked: it needs {' and '.join(names)}")
    return lines


def _designs(c: Certificate) -> Table:
    table = _table(
        f"best amplitude for a gap of {_short(c.target)}",
        ("theorem", "variant"),
        ("largest ϑ", "best ϑ", "Λ/L", "rounds", "least gap"),
    )
    for p in c.promises:
        d = p.design
        ratio = d.curvature / c.case.system.L if p.algorithm != "control" else np.nan
        numbers = [d.amplitude, ratio, d.rounds, d.least_target]
        shown = [_short(x) for x in numbers] if d.least_target < np.inf else ["-"] * 4
        largest = _short(p.amplitudes[1]) if p.amplitudes[1] else "none"
        table.add_row(_heading(c, p), p.variant, largest, *shown)
    table.caption = (
        "largest ϑ: up to it the theorem holds and says something; least gap: what it "
        "can certify at the ϑ best for that"
    )
    return table


def _first_rounds(c: Certificate) -> Table:
    names = ("largest θ at 1/n", "largest θ at a*", "θ", "gap after it")
    title = "one round at uniform weights (th:predictive-majorant)"
    table = _table(title, ("variant",), names)
    for r in c.first_round:
        numbers = (r.uniform, r.noise_optimal, r.amplitude, r.value)
        table.add_row(r.variant, *map(_short, numbers))
    return table


def _clients(c: Certificate) -> Table:
    system, noise = c.case.system, c.noise
    names = ("clients", "H", "b", "v²", "v²/(Hb)", "a*", "best a")
    table = _table("noise and weight by kind of client", (), names)
    columns = (system.horizon, system.batch_size, system.variance)
    kinds = np.stack([np.asarray(column) for column in columns], axis=-1)
    for kind in np.unique(kinds, axis=0):
        here = (kinds == kind).all(-1)
        mass = [noise.optimal[here].sum(), noise.comparator[here].sum()]
        numbers = (*kind, noise.levels[here][0], *mass)
        table.add_row(str(here.sum()), *map(_short, numbers))
    table.caption = (
        f"mean level {_short(noise.mean)}; noise of the uniform mean "
        f"{_short(noise.of_mean)}, at a* {_short(noise.optimal_level)}"
    )
    return table


def _sent(c: Certificate) -> Table:
    S, d = c.case.participants, c.case.dimension
    title = f"numbers sent, {S} clients in a round, d = {d}"
    table = _table(title, ("algorithm",), ("a round", "paper's count", "to target"))
    for s in c.sent:
        table.add_row(s.algorithm, *map(_short, (s.lean, s.printed, s.to_target)))
    return table


def _verdict(c: Certificate) -> str:
    target, able = _short(c.target), [p for p in c.promises if p.design.certified]
    if able:
        best = min(able, key=lambda p: float(p.design.rounds))
        d = best.design
        return (
            f"A gap of {target} is certified soonest by {best.label} with {d.variant} "
            f"constants:\n{_short(d.rounds)} rounds at ϑ = {_short(d.amplitude)}."
        )
    near = min(c.promises, key=lambda p: float(p.design.least_target))
    if near.design.least_target < c.case.system.cap:
        return (
            f"No theorem certifies a gap of {target}; the lowest any does is "
            f"{_short(near.design.least_target)}, by {near.label} with "
            f"{near.variant} constants."
        )
    return "No theorem says anything about many rounds of this federation."


def _table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for name in texts:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    table.caption_justify = "left"
    return table


def _short(number: Any) -> str:
    """Three digits; whole numbers in full up to seven, so that columns stay narrow."""
    x = float(number)
    if math.isnan(x):
        return "-"
    if math.isinf(x):
        return "never"
    if x.is_integer() and abs(x) < 1e7:
        return f"{int(x):,}"
    return f"{x:.3g}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
