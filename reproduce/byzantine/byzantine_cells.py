"""The study of hostile clients: panels × numbers of attackers × attacks × rules.

Twenty clients hold MNIST, pooled to 14 × 14 pixels, or Covertype, each IID or shared
out by a Dirichlet law of 1 or 0.2, and do four local steps. f of them attack: 0, 2, 4,
6 or 8; with 12, which is 60 %, only rules that have a root can work. The seed draws the
attackers. A rule with `is_told` knows f.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np

from hewfl import (
    Federation,
    FixedSteps,
    FlippedLabels,
    LocalSGD,
    Method,
    RandomLabels,
    RootSet,
    Scenario,
)
from hewfl.aggregators import Aggregator, Clip, ExactWeights, Pipeline, make
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Float64
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, BelowOne, Positive, Validated
from hewfl.data import dirichlet_partition, iid_partition, load
from hewfl.data.dataset import Dataset
from hewfl.data.prepare import prepare
from hewfl.federation.adversary import AttackView
from hewfl.federation.attacks import ScaledUpdates
from hewfl.federation.omniscient import (
    ALIE,
    GRID,
    IPM,
    Alternating,
    Drift,
    Gaussian,
    Goal,
    Mimic,
    MinMax,
    MinSum,
    Sleeper,
    search_strength,
)
from hewfl.problems import Softmax, softmax_from_arrays

CLIENTS, STEPS, BATCH = 20, 4, 32
SAMPLES = 20_000
"""Of a data set, a fifth of them for the test."""
FRACTION = 0.2


# ------------------ data


@final
@dataclass(frozen=True, slots=True)
class Panel:
    """Data and how clients hold them.

    Attributes:
        title: a few words.
        data: name of the data set.
        alpha: of the Dirichlet law; None for IID shards.
        classes: of the labels.
    """

    title: str
    data: str
    alpha: float | None = None
    classes: int = 10


PANELS = {
    "mnist-iid": Panel("MNIST, IID", "mnist"),
    "mnist-1": Panel("MNIST, Dirichlet 1", "mnist", 1.0),
    "mnist-0.2": Panel("MNIST, Dirichlet 0.2", "mnist", 0.2),
    "covertype-iid": Panel("Covertype, IID", "covertype", None, 7),
    "covertype-1": Panel("Covertype, Dirichlet 1", "covertype", 1.0, 7),
    "covertype-0.2": Panel("Covertype, Dirichlet 0.2", "covertype", 0.2, 7),
    "digits-0.2": Panel("digits, Dirichlet 0.2", "digits", 0.2),
}
"""The last one is for trials."""
SHARES = (0, 2, 4, 6, 8, 12)
"""Attackers among the twenty."""


@lru_cache(maxsize=2)
def _published(name: str) -> Dataset:
    """A data set; images of 28 × 28 pixels as means of 2 × 2."""
    data = load(name)
    if name != "mnist":
        return data
    test = None if data.test is None else (_pooled(data.test[0]), data.test[1])
    return replace(data, features=_pooled(data.features), test=test)


def _pooled(images: Any) -> Any:
    pixels = np.asarray(images, dtype=np.float32).reshape(-1, 14, 2, 14, 2)
    return pixels.mean(axis=(2, 4)).reshape(len(pixels), -1)


@lru_cache(maxsize=30)
def build_panel(name: str, seed: int) -> tuple[Softmax, float]:
    """The problem of a panel, and the estimate of its L that scales step sizes."""
    panel = PANELS[name]
    data = _published(panel.data)
    ready = prepare(data, seed, subsample=min(SAMPLES, data.size))
    if panel.alpha is None:
        shards = iid_partition(len(ready.labels), CLIENTS, seed)
    else:
        given = (ready.labels, CLIENTS, panel.alpha, seed)
        shards = dirichlet_partition(*given, min_samples=BATCH)
    problem = softmax_from_arrays(
        ready.features, ready.labels, shards, l2=1e-4, test=ready.test
    )
    return problem, problem.smoothness_estimate()


# ------------------ attacks


@final
@dataclass(frozen=True, slots=True)
class AgainstRoot(Validated):
    """Goes down with the root gradient g, and undoes all that g does not see.

        −⟨μ, ĝ⟩₋ĝ − λ(μ − ⟨μ, ĝ⟩ĝ),     ĝ = g/‖g‖, λ searched

    μ is the mean of honest updates. It is IPM where the rule under attack has no root.

    Attributes:
        share: of the clients that attack.
        search: what the search for λ maximises.
    """

    share: BelowOne
    search: Goal = "inner"

    def attack(self, view: AttackView) -> Float64[Array, "b d"]:
        """The same update from all attackers."""
        origin, direction = np.zeros(view.d), -view.mean
        if view.round.root is not None:
            g = np.asarray(view.round.root, dtype=np.float64)
            g = g / max(float(np.linalg.norm(g)), np.finfo(np.float64).tiny)
            slope = float(view.mean @ g)
            origin, direction = min(slope, 0.0) * g, slope * g - view.mean
        strength = search_strength(view, origin, direction, GRID, self.search)
        return np.tile(origin + strength * direction, (view.b, 1))


@final
@dataclass(frozen=True, slots=True)
class AcrossRoot(Validated):
    """Turns each attacker's own update across g, and goes down with g as others do.

        −10(Δ_i − ⟨Δ_i, ĝ⟩ĝ) − (10‖Δ_i‖/ℓ)⟨μ, ĝ⟩₋ĝ,     ℓ the median honest length

    Clipped to ℓ it goes down with g about as far as the mean μ of honest updates. Each
    attacker sends something else: there is no cluster to see. Where the rule under
    attack has no root it is the attacker's own update times −10.

    Attributes:
        share: of the clients that attack.
    """

    share: BelowOne

    def attack(self, view: AttackView) -> Float64[Array, "b d"]:
        """An update for each attacker."""
        turned = -10.0 * view.own_rows
        if view.round.root is None:
            return turned
        g = np.asarray(view.round.root, dtype=np.float64)
        g = g / max(float(np.linalg.norm(g)), np.finfo(np.float64).tiny)
        lengths = np.linalg.norm(turned, axis=1)
        along = min(float(view.mean @ g), 0.0) / max(view.length, 1e-300) * lengths
        return np.asarray(turned + np.outer(along - turned @ g, g))


ATTACKS: Mapping[str, Callable[[float], Any]] = {
    "ALIE": ALIE,
    "ALIE, searched (distance)": lambda s: ALIE(s, search="distance"),
    "ALIE, searched (inner)": lambda s: ALIE(s, search="inner"),
    "IPM 0.1": IPM,
    "IPM, searched (distance)": lambda s: IPM(s, search="distance"),
    "IPM, searched (inner)": lambda s: IPM(s, search="inner"),
    "min-max": MinMax,
    "min-max, unit": lambda s: MinMax(s, "unit"),
    "min-sum": MinSum,
    "mimic": Mimic,
    "Gaussian": Gaussian,
    "drift": Drift,
    "drift, searched": lambda s: Drift(s, around="mean", search="distance"),
    "sleeper": lambda s: Sleeper(IPM(s, search="inner"), rounds=20, sends="mean"),
    "alternating": lambda s: Alternating(IPM(s, search="inner"), on=5, off=5),
    "sign flip": lambda s: ScaledUpdates(s, -1.0),
    "sign flip, 10 times": lambda s: ScaledUpdates(s, -10.0),
    "random labels": RandomLabels,
    "flipped labels": FlippedLabels,
}
AGAINST_ROOT = "against the root"
"""For rules with a root only."""
ACROSS_ROOT = "across the root, 10 times"
"""For rules with a root, on the held-out seeds: it was found after the others."""
NONE = "none"
"""Where all clients are honest."""
TUNED_WITH = ("ALIE", "IPM, searched (inner)", "min-max", "mimic", "flipped labels")
"""The step size of a rule is the one with the best worst case over these."""
YARDSTICK_ATTACK, OUT_OF_REACH = "IPM 0.1", ("oracle", "root alone")
"""Attackers do not reach these rules: one attack stands for all."""


def build_federation(attack: str, f: int, root: RootSet | None) -> Federation:
    """Twenty clients, f of which attack."""
    faults: tuple[Any, ...] = ()
    if f:
        makers = {**ATTACKS, AGAINST_ROOT: AgainstRoot, ACROSS_ROOT: AcrossRoot}
        faults = (makers[attack](f / CLIENTS),)
    return Federation(FixedSteps(STEPS), BATCH, scenario=Scenario(faults), root=root)


# ------------------ rules


@final
@dataclass(frozen=True, slots=True)
class RootAlone(Aggregator):
    """The server learns on its own samples; no client counts.

        step = −ρ g

    Attributes:
        total: ρ > 0.
    """

    total: Positive

    name: ClassVar[str] = "root alone"
    needs: ClassVar[frozenset[Need]] = frozenset({"root"})

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """The step, and no weights."""
        n = round_.displacements.n
        step = -self.total * np.asarray(round_.root, dtype=np.float64)
        return Decision(np.zeros(n), "root alone", step=step), state


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the tables.

    Attributes:
        name: of the aggregator, as `make` takes it.
        is_told: whether it is given the number of attackers.
        options: other fields.
        root: samples of the server, if it needs any.
        momentum: β of the clients' updates.
        largest: number of attackers it can be told.
    """

    name: str
    is_told: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    root: RootSet | None = None
    momentum: float = 0.0
    largest: int = 9

    def method(self, label: str, total: float, f: int) -> Method:
        """The method with a total step, told f where it asks for it.

        With all clients honest a rule assumes a quarter, which is its default.
        """
        told = {"f": f} if self.is_told and f else {}
        rule: Aggregator
        if self.name == CLIPPED_EXACT:  # Λ = 3/s: a third of the step where −g leads
            rule = Pipeline(Clip(), ExactWeights("root", curvature=3 / total))
        elif self.name == ALONE:
            rule = RootAlone(total)
        else:
            rule = make(self.name, **told, **self.options)
        local = LocalSGD(total=total, worker_momentum=self.momentum)
        return Method(local, rule, name=label)


ORACLE, CLIPPED_EXACT, ALONE = "honest oracle", "clip+exact", "root alone"
_100 = RootSet(100)
MAIN = {
    ORACLE: Rule("oracle", largest=CLIENTS),
    "mean": Rule("mean", largest=CLIENTS),
    "Sieve": Rule("sieve"),
    "MajoritySieve": Rule("majority-sieve"),
    "Trust": Rule("trust", largest=CLIENTS),
    "geometric median": Rule("geometric-median"),
    "trimmed mean (f)": Rule("trimmed-mean", is_told=True),
    "multi-Krum (f)": Rule("multi-krum", is_told=True),
    "centred clipping": Rule("centered-clipping"),
    "NNM + trimmed mean (f)": Rule("nnm+trimmed-mean", is_told=True),
    "ARC + NNM + trimmed mean (f)": Rule("arc+nnm+trimmed-mean", is_told=True),
    "clip + NNM + geometric median (f)": Rule(
        "clip+nnm+geometric-median", is_told=True
    ),
    "SoftMix + geometric median": Rule("softmix+geometric-median"),
    "AngleMix + geometric median": Rule("angle-mix+geometric-median", largest=CLIENTS),
    "worker momentum, AngleMix + geometric median": Rule(
        "angle-mix+geometric-median", momentum=0.9
    ),
    "RootWeights, root of 100": Rule("root-weights", root=_100, largest=CLIENTS),
    "FLTrust, root of 100": Rule("fltrust", root=_100, largest=CLIENTS),
    "clip + ExactWeights, root of 100": Rule(CLIPPED_EXACT, root=_100, largest=CLIENTS),
    "root of 100 alone": Rule(ALONE, root=_100, largest=CLIENTS),
}
"""The first is no rule but a limit: the mean of the honest updates."""
ROOTS = {
    f"{label}, {title}": Rule(name, root=root, largest=CLIENTS)
    for title, root in {
        "root of 20": RootSet(20),
        "root of 500": RootSet(500),
        "root of 100 without 2 classes": RootSet(100, (0, 1)),
    }.items()
    for label, name in {
        "RootWeights": "root-weights",
        "FLTrust": "fltrust",
        "clip + ExactWeights": CLIPPED_EXACT,
    }.items()
}
"""Smaller and larger roots, and one without the first two classes."""
OTHERS = {
    "worker momentum, clip + NNM + geometric median (f)": Rule(
        "clip+nnm+geometric-median", is_told=True, momentum=0.9
    ),
    "coordinate median": Rule("coordinate-median"),
    "DnC (f)": Rule("dnc", is_told=True),
    "Krum (f)": Rule("krum", is_told=True),
    "meamed (f)": Rule("meamed", is_told=True),
    "CAF (f)": Rule("caf", is_told=True),
    "Bulyan (f)": Rule("bulyan", is_told=True, largest=4),
    "MDA (f)": Rule("mda", is_told=True, largest=4),
    "SignGuard": Rule("signguard"),
    "bucketing + geometric median": Rule("bucketing+geometric-median"),
    "disagreement": Rule("disagreement"),
    "agreement": Rule("agreement"),
}
"""Rules that are run where time is left."""
HELD_OUT = "held-out"
"""The group with seeds of its own: no form of a rule was chosen on them."""
GROUPS: Mapping[str, Mapping[str, Rule]] = {
    "main": MAIN,
    "roots": ROOTS,
    "others": OTHERS,
    HELD_OUT: {
        label: rule
        for label, rule in MAIN.items()
        if label in (ORACLE, "AngleMix + geometric median") or rule.root
    },
}
RULES = {label: rule for group in GROUPS.values() for label, rule in group.items()}


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """A panel, a number of attackers, and a group of rules."""

    panel: str
    f: int
    group: str = "main"

    @property
    def rules(self) -> tuple[str, ...]:
        """Labels of the rules that can work here."""
        return tuple(k for k, r in GROUPS[self.group].items() if self.f <= r.largest)

    def attacks(self, rule: str) -> tuple[str, ...]:
        """The attacks on a rule."""
        if self.f == 0:
            return (NONE,)
        if RULES[rule].name in OUT_OF_REACH:
            return (YARDSTICK_ATTACK,)
        if not RULES[rule].root:
            return tuple(ATTACKS)
        later = (ACROSS_ROOT,) if self.group == HELD_OUT else ()
        return (*ATTACKS, AGAINST_ROOT, *later)


FIRST = (
    *(Cell("mnist-0.2", 8), Cell("covertype-0.2", 8), Cell("mnist-0.2", 12)),
    *(Cell("mnist-0.2", 0), Cell("mnist-0.2", 4), Cell("mnist-iid", 8)),
    *(Cell("mnist-0.2", 8, "roots"), Cell("covertype-0.2", 0)),
    *(Cell("covertype-0.2", 4), Cell("covertype-0.2", 12), Cell("mnist-0.2", 2)),
    *(Cell("mnist-0.2", 6), Cell("covertype-iid", 8), Cell("mnist-1", 8)),
    *(Cell("covertype-0.2", 2), Cell("covertype-0.2", 6), Cell("covertype-1", 8)),
    *(Cell("mnist-0.2", 8, "others"), Cell("mnist-0.2", 4, "others")),
)
"""The cells in the order of what they tell; the others come after them."""
_ALL = tuple(
    Cell(panel, f, group)
    for group in GROUPS
    if group != HELD_OUT
    for panel in PANELS
    for f in SHARES
    if not panel.startswith("digits")
)
CELLS = (
    *FIRST,
    *(cell for cell in _ALL if cell not in FIRST and cell.rules),
)
HELD_OUT_CELLS = tuple(
    Cell(panel, f, HELD_OUT)
    for f in (8, 4, 0, 12)
    for panel in ("mnist-0.2", "covertype-0.2", "mnist-iid", "covertype-iid")
)
"""The columns of the figure again, for the rules with a root and `AngleMix`."""
TRIAL = Cell("digits-0.2", 8)
