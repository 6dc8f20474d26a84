"""`hewfl certify`: what the theory guarantees for a federation."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, final

import numpy as np
import typer
from rich.console import Console

from hewfl.cli.certify_plot import draw_certificate, read_gaps
from hewfl.cli.certify_text import (
    certificate_latex,
    headline,
    print_certificate,
    verdict,
)
from hewfl.cli.error_messages import one_line_errors
from hewfl.core.toml_records import from_table, is_whole
from hewfl.core.validation import invalid
from hewfl.plotting import check_figure_path
from hewfl.theory.certificates import Certificate, Guarantee, Improvement, improvements
from hewfl.theory.certificates import certify as evaluate
from hewfl.theory.systems import Case, System, group_clients

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
        count: how many clients; a list says how many of each kind, and the other lists
            then have one entry for each kind.
    """

    horizon: Wholes
    batch_size: Wholes
    variance: Numbers
    count: Wholes | None = None

    def __post_init__(self) -> None:
        """Check that lists and `count` agree on the number of clients or kinds."""
        listed = (self.horizon, self.batch_size, self.variance, self.count)
        lengths = {len(x) for x in listed if isinstance(x, tuple)}
        if isinstance(self.count, int) and lengths == {self.count}:
            object.__setattr__(self, "count", None)  # it says what the lists say
        elif isinstance(self.count, int):
            lengths |= {self.count}
        if len(lengths) != 1 or min(lengths) < 1:
            rule = "one number of clients, by `count` or by lists of one length"
            raise invalid(
                "clients", rule, ", ".join(map(str, sorted(lengths))) or "none"
            )

    def system(
        self, smoothness: float, radius: float, *, grouped: bool = True
    ) -> System:
        """The system, with identical clients counted unless they have numbers."""
        fields = (np.atleast_1d(x) for x in (self.horizon, self.batch_size))
        H, b, v2 = np.broadcast_arrays(*fields, np.atleast_1d(self.variance))
        count = None if self.count is None else np.atleast_1d(self.count)
        system = System(smoothness, radius, H, b, v2, count)
        if grouped:
            return group_clients(system)
        if count is None:
            return system
        H, b, v2 = (
            np.repeat(x, count.astype(int)) for x in np.broadcast_arrays(H, b, v2)
        )
        return System(smoothness, radius, H, b, v2)


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
    rotation: tuple[tuple[int, ...], ...] | None = None
    absence: int | None = None
    variants: tuple[Literal["printed", "paper", "sharp", "absorbed", "joint"], ...] = (
        "paper",
        "sharp",
        "absorbed",
        "joint",
    )

    def answer(self) -> Certificate:
        """The certificate."""
        case = Case(
            self.clients.system(
                self.smoothness, self.radius, grouped=self.rotation is None
            ),
            gap=self.start.gap,
            tracking=self.start.tracking,
            pl_constant=self.pl_constant,
            similarity=self.similarity,
            hessian_lipschitz=self.hessian_lipschitz,
            sampling=self.sampling,
            active=self.active,
            dimension=self.dimension,
            rotation=self.rotation,
            absence=self.absence,
        )
        return evaluate(
            case,
            self.target,
            rounds=self.rounds,
            amplitude=self.amplitude,
            curvature=self.curvature,
            variants=self.variants,
        )

    def improvements(self, certificate: Certificate) -> tuple[Improvement, ...]:
        """What one change at a time would do."""
        known = ("absorbed", "sharp", "paper", "joint")
        best = [v for v in known if v in self.variants]
        return improvements(
            certificate.case,
            float(certificate.target),
            amplitude=self.amplitude,
            curvature=self.curvature,
            variants=tuple(best) or self.variants,
        )


def certify(  # noqa: PLR0913 - options of a command
    *,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file; options override it.")
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="L.")] = None,
    radius: Annotated[float | None, typer.Option(help="R.")] = None,
    horizon: Annotated[
        str | None, typer.Option(help="H_i, one for all or one each: 1,2,4,8.")
    ] = None,
    batch_size: Annotated[str | None, typer.Option(help="b_i, likewise.")] = None,
    variance: Annotated[str | None, typer.Option(help="v_i², likewise.")] = None,
    count: Annotated[
        str | None,
        typer.Option(help="n, where nothing is a list; or how many of each kind."),
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
    pl_constant: Annotated[float | None, typer.Option(help="PL constant μ.")] = None,
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
    rotation: Annotated[
        str | None,
        typer.Option(
            help="Clients of each round, from 0, in place of --active: 0,1;2."
        ),
    ] = None,
    absence: Annotated[
        int | None,
        typer.Option(help="Most rounds in a row that a client is absent; no limit."),
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
    variants: Annotated[
        list[str] | None,
        typer.Option(
            help="printed, paper, sharp, absorbed or joint constants. Repeatable; all "
            "but printed if absent."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for machines.")
    ] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="Print the bounds in LaTeX.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the bounds here (.png, .pdf or .svg).")
    ] = None,
    observed: Annotated[
        Path | None,
        typer.Option(help="Gaps of a run for the figure: one a line, from round 0."),
    ] = None,
    html: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Evaluate the theorems that apply to a federation."""
    options: dict[str, Any] = {
        "smoothness": smoothness,
        "radius": radius,
        "amplitude": amplitude,
        "curvature": curvature,
        "target": target,
        "rounds": rounds,
        "pl_constant": pl_constant,
        "similarity": similarity,
        "hessian_lipschitz": hessian_lipschitz,
        "sampling": sampling,
        "active": active,
        "absence": absence,
        "dimension": dimension,
        "variants": variants,
        "start": {"gap": start_gap, "tracking": start_tracking},
    }
    with one_line_errors():
        options["clients"] = {
            "horizon": _numbers("--horizon", horizon, whole=True),
            "batch_size": _numbers("--batch-size", batch_size, whole=True),
            "variance": _numbers("--variance", variance),
            "count": _numbers("--count", count, whole=True),
        }
        if rotation is not None:
            options["rotation"] = _rotation(rotation)
        table = _override(_read(config), options)
        _require_wholes(table)
        if plot is not None:
            check_figure_path("plot", plot)  # before the work, not after it
        gaps = None if observed is None else read_gaps(observed)
        if html is not None:
            raise invalid("--html", "left out: use --plot or --json", html)
        question = from_table(Question, table, "")
        certificate = question.answer()
        changes = question.improvements(certificate)
        if plot is not None:
            draw_certificate(certificate, plot, gaps)
    if as_json:
        result = _plain(certificate) | {
            "headline": headline(certificate, changes),
            "improvements": _plain(changes),
        }
        for entry, row in zip(
            result["guarantees"], certificate.guarantees, strict=True
        ):
            entry["verdict"] = verdict(certificate, row)
        typer.echo(json.dumps(result, indent=1, allow_nan=False))
        return
    if latex:
        typer.echo(certificate_latex(certificate))
        return
    print_certificate(certificate, changes, Console())
    if plot is not None:
        typer.echo(f"picture saved in {plot}")


def _read(config: Path | None) -> Mapping[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise invalid("config", "a readable TOML file", f"{config}: {error}") from error


def _override(table: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The table, with the options that are given in place of its fields."""
    merged = dict(table)
    for name, value in options.items():
        if isinstance(value, Mapping):
            given = {k: v for k, v in value.items() if v is not None}
            if given and isinstance(merged.get(name, {}), Mapping):
                merged[name] = {**merged.get(name, {}), **given}
        elif value is not None:
            merged[name] = value
    return merged


def _numbers(name: str, text: str | None, *, whole: bool = False) -> Any:
    """A number, or the list that commas make."""
    if text is None:
        return None
    rule = f"{'whole ' if whole else ''}numbers separated by commas"
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise invalid(name, rule, repr(text)) from error
    if whole and not all(value.is_integer() for value in values):
        raise invalid(name, rule, repr(text))
    return values if len(values) > 1 else values[0]


def _rotation(text: str) -> list[list[int]]:
    """The clients of each round; an empty round has none."""
    rounds = text.split(";")
    try:
        return [[int(i) for i in part.split(",") if i.strip()] for part in rounds]
    except ValueError as error:
        rule = "rounds separated by semicolons, of whole numbers separated by commas"
        raise invalid("--rotation", rule, repr(text)) from error


def _require_wholes(table: Mapping[str, Any]) -> None:
    """Require a whole number, or a list, where the field takes both."""
    clients = table.get("clients")
    for name in ("horizon", "batch_size", "count"):
        value = clients.get(name) if isinstance(clients, Mapping) else None
        if value is not None and not isinstance(value, list) and not is_whole(value):
            rule = "a whole number, or a list of them"
            raise invalid(f"clients.{name}", rule, repr(value))


def _plain(value: Any) -> Any:
    """A record as JSON can hold it: NaN as null, infinities as "inf" and "-inf"."""
    if is_dataclass(value):
        names = [f.name for f in fields(value)]
        names += ["holds"] if isinstance(value, Guarantee) else []
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
