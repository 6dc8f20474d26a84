"""Figures: the right numbers on the axes, the same bytes every time."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl.errors import InvalidInputError, MissingExtraError
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.plots import (
    COLUMN,
    PAGE,
    STRONG,
    STRONG_WIDTH,
    author_rule,
    draw_curves,
    draw_difference,
    figure_curves,
    leaders,
    mean_and_spread,
    styles_of,
)
from hewfl.experiments.results import Results, measured
from hewfl.experiments.statistics import compare
from hewfl.plotting import COLOURS, save
from tests.report.test_report import hostile_run, results_of


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of(hostile_run(tmp_path_factory.getbasetemp()))


@pytest.fixture
def axes() -> Any:
    figure: Any = importlib.import_module("matplotlib.figure").Figure()
    return figure.add_subplot()


def with_last(results: Results, entry: int, **changes: Any) -> Results:
    """The same results with another last record of one entry, in every seed."""
    records = tuple(
        tuple(
            (*own[:-1], replace(own[-1], **changes)) if k == entry else own
            for k, own in enumerate(by_entry)
        )
        for by_entry in results.records
    )
    return Results(results.spec, results.rounds, records, results.constants)


# ------------------------------------------------------------------ curves


@pytest.mark.parametrize("axis", ["rounds", "scalars", "paper_scalars"])
@pytest.mark.parametrize("quantity", ["gap", "test_accuracy"])
def test_lines_are_means_over_seeds(
    results: Results, axes: Any, axis: Any, quantity: str
) -> None:
    draw_curves(axes, results, quantity, axis=axis)
    assert [line.get_label() for line in axes.lines] == list(results.labels)
    for line, label in zip(axes.lines, results.labels, strict=True):
        want = results.curve(label, quantity).mean(axis=0)
        np.testing.assert_allclose(line.get_ydata(), want)
        where = (
            results.rounds
            if axis == "rounds"
            else results.curve(label, axis).mean(axis=0)
        )
        np.testing.assert_allclose(line.get_xdata(), where)
    assert axes.get_yscale() == ("log" if quantity == "gap" else "linear")


def test_bands_are_one_deviation_wide(results: Results, axes: Any) -> None:
    draw_curves(axes, results, "objective", axis="rounds", focus=["HEW"])
    (band,) = axes.collections
    assert not axes.texts  # a name would lie on the lines
    assert [line.get_linewidth() for line in axes.lines] == [STRONG_WIDTH, 0.8, 0.8]
    values = results.curve("HEW", "objective")
    mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx((mean + spread).max())
    assert heights.min() == pytest.approx((mean - spread).min())


def test_a_diverged_method_leaves_the_others_readable(
    results: Results, axes: Any
) -> None:
    wild = with_last(results, 2, objective=1e30)
    draw_curves(axes, wild, "gap")
    assert axes.get_ylim()[1] < 10
    low = min(results.final(k, "gap").mean() for k in results.labels[:2])
    assert axes.get_ylim()[0] <= low


def test_a_gap_below_zero_is_left_out(results: Results, axes: Any) -> None:
    least = results.constants[0]["objective"]
    draw_curves(axes, with_last(results, 0, objective=least - 1), "gap")
    line, *_ = axes.lines
    assert np.isnan(line.get_ydata()[-1])
    assert (line.get_ydata()[:-1] > 0).all()
    assert axes.get_ylim()[0] > 0


def test_a_line_ends_where_a_seed_diverged() -> None:
    mean, spread = mean_and_spread(np.array([[1.0, 2.0, 3.0], [3.0, np.inf, np.nan]]))
    np.testing.assert_array_equal(mean, [2, np.nan, np.nan])
    assert spread[0] == pytest.approx(np.sqrt(2))
    mean, spread = mean_and_spread(np.array([[1.0, np.inf]]))
    np.testing.assert_array_equal(mean, [1, np.nan])
    np.testing.assert_array_equal(spread, [0, 0])


def test_a_quantity_nobody_measured_is_refused(results: Results, axes: Any) -> None:
    with pytest.raises(InvalidInputError, match="`quantity` must be one that was"):
        draw_curves(axes, results, "nothing")


def test_differences_are_paired(results: Results, axes: Any) -> None:
    pair = ("HEW", results.labels[2])
    draw_difference(axes, results, pair, "objective", axis="rounds", ink="black")
    line, _ = axes.lines
    ours, theirs = (results.curve(label, "objective") for label in pair)
    ratios = np.exp(np.log(ours / theirs).mean(axis=0))
    np.testing.assert_allclose(line.get_ydata()[::2], ratios)
    last = axes.collections[0].get_paths()[0].vertices
    found = compare(ours[:, -1], theirs[:, -1])
    ends = last[last[:, 0] == results.rounds[-1], 1]
    assert ends.min() == pytest.approx(found.low)
    assert ends.max() == pytest.approx(found.high)


def test_measured_keeps_what_the_run_has(results: Results) -> None:
    assert measured(results, ["gap", "nothing", "pooled"]) == ["gap", "pooled"]


# ------------------------------------------------------------------ whole figures


def test_figures_have_the_same_bytes_every_time(
    results: Results, tmp_path: Path
) -> None:
    def draw(figure: Any) -> None:
        draw_curves(figure.subplots(), results, "gap")

    first = save(draw, (3.0, 2.0), tmp_path / "a.v1")
    second = save(draw, (3.0, 2.0), tmp_path / "b.pdf")
    assert [file.name for file in first] == ["a.v1.pdf", "a.v1.png"]
    assert [file.name for file in second] == ["b.pdf", "b.png"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"/FontFile2" in first[0].read_bytes()  # embedded TrueType


def test_names_are_not_read_as_formulas(results: Results, tmp_path: Path) -> None:
    labels = ("_hidden", "$\\bad{$", "x" * 60)
    methods = zip(results.spec.methods, labels, strict=True)
    spec = replace(results.spec, methods=tuple(replace(m, label=k) for m, k in methods))
    odd = Results(spec, results.rounds, results.records, results.constants)
    pdf = tmp_path / "odd.pdf"
    figure_curves({"": odd, "_$": odd}, "objective", pdf)
    assert pdf.stat().st_size > 0


def test_matplotlib_is_asked_for(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="extra report"):
        figure_curves({"": results}, "objective", tmp_path / "figure.pdf")


# ------------------------------------------------------------------ styles


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_colours_stand_out_on_both_papers() -> None:
    for light, dark in COLOURS.values():
        assert 1.05 / (luminance(light) + 0.05) >= 3
        assert (luminance(dark) + 0.05) / (luminance("#1c2127") + 0.05) >= 3


def specs(*names: str) -> tuple[MethodSpec, ...]:
    return tuple(MethodSpec(name, name) for name in names)


def test_the_authors_rule_has_the_strong_colour() -> None:
    methods = specs("oracle", "trust", "HewHom", "FedAvg")
    assert author_rule(methods) == "trust"
    styles = styles_of(methods)
    assert [k for k, s in styles.items() if s.colour == STRONG] == ["trust"]
    assert max(styles, key=lambda k: styles[k].width) == "trust"
    own = specs("trust", "rules:Mine", "FedAvg")
    assert author_rule(own) == "rules:Mine"
    assert styles_of(own)["rules:Mine"].colour == STRONG


def test_limits_are_grey_and_dashed() -> None:
    styles = styles_of(specs("FedAvg", "oracle", "trust"), limits=["trust"])
    for label in ("oracle", "trust"):
        assert styles[label].colour == "grey"
        assert styles[label].dash
    assert author_rule(specs("oracle")) == "oracle"


def test_leaders_are_the_authors_rule_and_the_best_other(results: Results) -> None:
    first, second = leaders(results, "objective")
    ends = {k: results.final(k, "objective").mean() for k in results.labels[1:]}
    assert (first, second) == ("HEW", min(ends, key=ends.__getitem__))


def drawn(draw: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure that a function saves."""
    figures: list[Any] = []
    kind: Any = importlib.import_module("matplotlib.figure").Figure
    monkeypatch.setattr(kind, "savefig", lambda self, *_, **__: figures.append(self))
    draw()
    return figures[0]


def _column(results: Results, path: Path) -> None:
    figure_curves({"": results}, "test_accuracy", path.with_suffix(".pdf"))


def _page(results: Results, path: Path) -> None:
    panels = {"a": results, "b": results}
    figure_curves(panels, "test_accuracy", path.with_suffix(".pdf"), width=PAGE)


@pytest.mark.parametrize("make", [_column, _page])
@pytest.mark.parametrize("length", [12, 45, 90])
def test_legends_of_many_methods_are_not_cut(
    results: Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    length: int,
) -> None:
    """Thirteen methods, names of any length: all inside, below the panels."""
    methods = tuple(
        replace(results.spec.methods[2], label=f"{k} {'name ' * 20}"[:length])
        for k in range(13)
    )
    many = Results(
        replace(results.spec, methods=methods),
        results.rounds,
        tuple((by_entry[2],) * 13 for by_entry in results.records),
        results.constants,
    )
    figure = drawn(lambda: make(many, tmp_path / "many"), monkeypatch)
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= 0
    assert len(legend.get_texts()) == 13
    bottom = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert box.y1 <= bottom + 1


def test_a_column_figure_has_the_width_of_a_column(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.pdf"
    panels = {"": results}
    draw = lambda: figure_curves(panels, "test_accuracy", file)  # noqa: E731
    figure = drawn(draw, monkeypatch)
    assert figure.get_figwidth() == COLUMN
    (axes,) = figure.axes
    assert axes.get_ylabel() == "test accuracy"
    assert axes.get_window_extent().height > 0.9 * figure.dpi
