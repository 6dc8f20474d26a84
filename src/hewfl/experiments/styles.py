"""How a method looks, the same in every figure and page.

The algorithm gives the colour, so that a method keeps it from panel to panel; variants
of one algorithm differ in dashes and markers. An algorithm whose colour another one of
the same comparison has already takes a free one, as long as there are any.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import final

from hewfl.experiments.method_spec import MethodSpec
from hewfl.plotting import COLOURS

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6.0, 2.0),
    (2.0, 1.5),
    (6.0, 2.0, 1.5, 2.0),
    (10.0, 3.0),
    (4.0, 1.5, 1.5, 1.5, 1.5, 1.5),
)
"""Lengths of strokes and gaps, in line widths; the first is solid."""

MARKERS = {
    "": "",
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "x",
    "plus": "+",
    "wedge": "v",
}
"""What a page calls them, and what matplotlib does; the first is none."""

ADAPTIVE = ("HewHom", "HewHet", "HewMean", "HewControl")
"""The methods with exact weights."""

_FAMILIES = {
    "HewHom": ("vermilion", 0),
    "HewHet": ("blue", 0),
    "HewFixed": ("green", 1),
    "HewControl": ("sky", 0),
    "UniformLocalSGD": ("grey", 1),
    "FedAvg": ("amber", 2),
    "FedNova": ("purple", 3),
    "Scaffold": ("sky", 4),
    "FedProx": ("pink", 5),
    "MinibatchSGD": ("grey", 2),
    "FedMGDAPlus": ("vermilion", 2),
    "FedAWARE": ("blue", 2),
    "FedExP": ("green", 3),
    "FedAdp": ("amber", 4),
    "QFedAvg": ("purple", 1),
    "StepWeighted": ("pink", 3),
    "HewMean": ("vermilion", 1),
    "Disagreement": ("green", 0),
    "Agreement": ("purple", 0),
    "GeometricMedian": ("amber", 0),
    "CoordinateMedian": ("amber", 5),
    "TrimmedMean": ("amber", 3),
    "Krum": ("pink", 1),
    "MultiKrum": ("pink", 0),
    "CentredClipping": ("sky", 2),
}
"""Colour and first dash of each algorithm."""


@final
@dataclass(frozen=True, slots=True)
class Style:
    """The line of one method."""

    colour: str
    dash: tuple[float, ...]
    marker: str
    width: float

    @property
    def ink(self) -> str:
        """The colour on white."""
        return COLOURS[self.colour][0]


def is_hew(method: MethodSpec) -> bool:
    """Whether a method is the paper's own and not a baseline."""
    return method.method.startswith("Hew")


def styles_of(methods: Sequence[MethodSpec]) -> dict[str, Style]:
    """A style for each label; variants of one algorithm share the colour alone."""
    found: dict[str, Style] = {}
    colours: dict[str, str] = {}
    taken: set[tuple[str, int, str]] = set()
    markers = tuple(MARKERS)
    for method in methods:
        wanted, first = _FAMILIES.get(method.method, ("grey", 3))
        free = [name for name in (wanted, *COLOURS) if name not in colours.values()]
        colour = colours.setdefault(method.method, free[0] if free else wanted)
        # 42 looks, each once: 6 dashes and 7 markers have no common divisor; the
        # first variant has no marker
        looks = [(first, "")]
        looks += [((first + k) % len(DASHES), markers[1 + k % 7]) for k in range(1, 43)]
        fresh = (look for look in looks if (colour, *look) not in taken)
        dash, marker = next(fresh, looks[0])
        taken.add((colour, dash, marker))
        width = 2.0 if method.method in ADAPTIVE else 1.3
        found[method.label] = Style(colour, DASHES[dash], marker, width)
    return found


def page_style() -> str:
    """The style sheet of pages: a class of each colour sets `--ink` by the scheme."""
    light = "".join(f".{name}{{--ink:{ink}}}" for name, (ink, _) in COLOURS.items())
    dark = "".join(
        f":root:not(.light) .{name}{{--ink:{ink}}}"
        for name, (_, ink) in COLOURS.items()
    )
    own = resources.files("hewfl.report") / "page" / "report.css"
    scheme = f"@media screen and (prefers-color-scheme:dark){{{dark}}}"
    return f"{light}\n{scheme}\n{own.read_text('utf-8')}"
