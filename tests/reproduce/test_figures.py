"""The paper's figures: its layout, the right numbers, distinct styles."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reproduce.figures import figure_1, figure_2
from reproduce.specs import extended_spec, main_methods, rivals

from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.plots import styles_of
from hewfl.experiments.results import Results
from hewfl.plotting import plain_text
from tests.report.test_report import hostile_run, results_of


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of(hostile_run(tmp_path_factory.getbasetemp()))


def panels(results: Results) -> dict[tuple[str, str], Results]:
    keys = [("covertype", "hom-equal"), ("covertype", "hom-random")]
    return dict.fromkeys((*keys, ("mnist", "het-random")), results)


def record_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved from now on."""
    figures: list[Any] = []
    kind: Any = importlib.import_module("matplotlib.figure").Figure

    def keep(self: Any, *_: Any, **__: Any) -> None:
        figures.append(self)  # and write nothing, which takes long

    monkeypatch.setattr(kind, "savefig", keep)
    return figures


def test_figure_1_has_the_layout_of_the_paper(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = record_figures(monkeypatch)
    figure_1(panels(results), tmp_path / "figure1")
    axes = figures[0].axes
    assert len(axes) == 6 * 3
    titles = [a.get_title() for a in axes[:3]]
    assert titles[0] == "homogeneous, equal H"
    assert titles[2] == "heterogeneous, random H"
    rows = [axes[3 * k].get_ylabel() for k in range(6)]
    assert rows[0] == "Covertype\ntest accuracy"
    assert rows[2] == "Covertype\nobjective of HEW\nover best rival's"
    assert axes[6].get_title() == plain_text(f"over {results.labels[2]}")
    assert len(axes[6].lines) == 2  # the difference, and zero
    assert [len(a.lines) for a in axes[:3]] == [3, 3, 0]  # the third was not run
    assert axes[2].texts[0].get_text() == "no run"
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == list(results.labels)


def test_figure_2_shows_weights_by_horizon(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = record_figures(monkeypatch)
    key = ("mnist", "het-random")
    figure_2({key: results}, {key: "HEW"}, tmp_path / "figure2")
    (axes,) = figures[0].axes
    mass = results.mass("HEW")
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(heights, [seeds.mean() for seeds in mass.values()])
    points = np.concatenate([c.get_offsets()[:, 1] for c in axes.collections[:-1]])
    np.testing.assert_allclose(points, np.concatenate(list(mass.values())))
    marks = [path.vertices[0, 1] for path in axes.collections[-1].get_paths()]
    last = [by_entry[0][-1].horizons for by_entry in results.records]
    want = [np.mean([np.mean(np.array(hs) == h) for hs in last]) for h in mass]
    np.testing.assert_allclose(marks, want)


def test_methods_of_a_comparison_look_different() -> None:
    methods = (*main_methods(), *rivals(), MethodSpec("HewControl", "HEW (Alg. 1)"))
    styles = styles_of(methods)
    assert len({(s.colour, s.dash, s.marker) for s in styles.values()}) == len(methods)
    colours = [styles[m.label].colour for m in main_methods()]
    assert len(set(colours)) == len({m.method for m in main_methods()})


def test_variants_of_one_method_are_told_apart() -> None:
    methods = [MethodSpec("FedAvg", f"FedAvg {k}") for k in range(40)]
    styles = styles_of((*main_methods()[:1], *methods))
    del styles[main_methods()[0].label]
    assert {style.colour for style in styles.values()} == {"amber"}
    assert len({(style.dash, style.marker) for style in styles.values()}) == 40


def test_a_method_looks_the_same_in_other_company() -> None:
    few = (*main_methods()[:1], *main_methods()[5:6])
    assert styles_of(few).items() <= styles_of(main_methods()).items()


def test_every_method_of_the_extended_comparison_has_a_style() -> None:
    methods = extended_spec("mnist", "het-random").methods
    styles = styles_of(methods)
    assert styles.keys() == {method.label for method in methods}
    own = [styles[m.label] for m in methods if m.method == "HewFixed"]
    assert len({style.dash for style in own}) == len(own) == 4
