"""How a method looks, the same in every figure and page.

The algorithm gives the colour, so that a method keeps it from panel to panel; variants
of one algorithm, and algorithms that share a colour, differ in their dashes. Lines that
coincide stay visible, as no two baselines of the paper are both solid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from hewfl.experiments.methods import MethodSpec

COLOURS = {
    "vermilion": ("#d55e00", "#ff8a3d"),
    "blue": ("#0072b2", "#58b0ec"),
    "green": ("#00875f", "#2cc295"),
    "amber": ("#b07a00", "#f0b83c"),
    "purple": ("#8b3a8f", "#d18ad6"),
    "sky": ("#2b95c8", "#8fd3f7"),
    "pink": ("#c4588f", "#f29cc4"),
    "grey": ("#6b6b6b", "#b4b4b4"),
}
"""On white and on black: the palette of Okabe and Ito, which readers with any common
colour blindness can tell apart, darkened and lightened to a contrast of 3 to 1."""
DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6.0, 2.0),
    (2.0, 1.5),
    (6.0, 2.0, 1.5, 2.0),
    (10.0, 3.0),
    (4.0, 1.5, 1.5, 1.5, 1.5, 1.5),
)
"""Lengths of strokes and gaps, in line widths; the first is solid."""

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
    """The line of one method.

    Attributes:
        colour: a name in `COLOURS`.
        dash: one of `DASHES`.
        width: in points; exact weights are the wider ones.
    """

    colour: str
    dash: tuple[float, ...]
    width: float

    @property
    def ink(self) -> str:
        """The colour on white."""
        return COLOURS[self.colour][0]


def is_hew(method: MethodSpec) -> bool:
    """Whether a method is the paper's own and not a baseline."""
    return method.method.startswith("Hew")


def styles_of(methods: Sequence[MethodSpec]) -> dict[str, Style]:
    """A style for each label; no two alike until a colour has used up its dashes."""
    found: dict[str, Style] = {}
    taken: set[tuple[str, int]] = set()
    for method in methods:
        colour, first = _FAMILIES.get(method.method, ("grey", 3))
        turns = [(first + k) % len(DASHES) for k in range(len(DASHES))]
        dash = next((k for k in turns if (colour, k) not in taken), first)
        taken.add((colour, dash))
        width = 2.0 if method.method in ADAPTIVE else 1.3
        found[method.label] = Style(colour, DASHES[dash], width)
    return found


def style_sheet() -> str:
    """The colours as CSS: a class of each name sets `--ink`, by the reader's scheme."""
    light = "".join(f".{name}{{--ink:{ink}}}" for name, (ink, _) in COLOURS.items())
    dark = "".join(f".{name}{{--ink:{ink}}}" for name, (_, ink) in COLOURS.items())
    return f"{light}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n"
