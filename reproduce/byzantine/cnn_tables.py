"""Two published tables of deep networks under attack, ours beside theirs.

    bucketing    experiment 3 of [Karimireddy2022]: MNIST, a CNN, 25 clients of which 5
                 attack, labels sorted over the honest ones, 600 steps of 32 samples
    byzfl        the row γ = 0 of ByzFL's heat maps: MNIST, `cnn_mnist`, 10 honest
                 clients with about one digit each, 1 to 4 attackers, 800 steps of 25

A client does one step in a round and sends worker momentum m ← βm + (1 − β)Δ. All
rules and attacks of a table are one stack of replicas: one simulation, which takes the
steps of all of them together. What a faulty client does with its own labels cannot
differ between replicas, so that flipped labels are a simulation of their own.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl import (
    Federation,
    FixedSteps,
    FlippedLabels,
    LocalSGD,
    Method,
    RootSet,
    Scenario,
    simulate,
)
from hewfl.aggregators import (
    NNM,
    Aggregator,
    Bucketing,
    CenteredClipping,
    Clip,
    GeometricMedian,
    Krum,
    Pipeline,
    TrimmedMean,
    make,
)
from hewfl.core.array_types import Float64
from hewfl.core.validation import Array, BelowOne, Validated
from hewfl.data import load
from hewfl.federation.adversary import Attack, AttackView, Remembering
from hewfl.federation.omniscient import ALIE, IPM, Mimic

PIXELS = (0.1307 * 255, 0.3081 * 255)
"""Mean and deviation of MNIST, in bytes."""
BETWEEN = " | "
"""Between the rule and the attack in the name of a replica."""


@final
@dataclass(frozen=True, slots=True)
class OneEach(Validated):
    """Another attack on each replica: that behind `BETWEEN` in the name of its method.

    Attributes:
        share: of the clients that attack.
        attacks: names and attacks.
    """

    share: BelowOne
    attacks: tuple[tuple[str, Attack], ...]

    def attack(self, view: AttackView) -> Float64[Array, "b d"]:
        """The updates of the attack on this replica."""
        place, attack = self._of(view)
        memory = view.memory[place]
        return attack.attack(_with_memory(view, memory))

    def init(self, n: int, d: int) -> tuple[Any, ...]:
        """The memories of all attacks."""
        return tuple(
            a.init(n, d) if isinstance(a, Remembering) else None
            for _, a in self.attacks
        )

    def remember(self, view: AttackView) -> tuple[Any, ...]:
        """The memory of the attack on this replica; the others stay as they are."""
        place, attack = self._of(view)
        memories = list(view.memory)
        if isinstance(attack, Remembering):
            memories[place] = attack.remember(_with_memory(view, memories[place]))
        return tuple(memories)

    def _of(self, view: AttackView) -> tuple[int, Attack]:
        name = view.algorithm.name.rpartition(BETWEEN)[2]
        names = [given for given, _ in self.attacks]
        return names.index(name), self.attacks[names.index(name)][1]


def _with_memory(view: AttackView, memory: Any) -> AttackView:
    return AttackView(
        view.round, view.honest, view.attackers, view.algorithm, view.state,
        view.decide, view.seed, view.index, memory,
    )  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Opposite(Validated):
    """The attacker's own honest update with the other sign: bit flipping.

    Attributes:
        share: of the clients that attack.
    """

    share: BelowOne

    def attack(self, view: AttackView) -> Float64[Array, "b d"]:
        """−Δ_i."""
        return -view.own_rows


# ------------------ the two tables


def bucketing_cnn(seed: int) -> Any:
    """Conv 32, conv 64, pool, dense 128: 1,199,882 parameters, with dropout.

    The `Net` of the authors' code, whose second `Dropout2d` acts on vectors.
    """
    import torch  # noqa: PLC0415 - the convex study runs without it

    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3)),
            *(nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten()),
            *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
        )


def byzfl_cnn(seed: int) -> Any:
    """Conv 20, pool, conv 50, pool, dense 500: 431,080 parameters.

    The `cnn_mnist` of ByzFL.
    """
    import torch  # noqa: PLC0415 - the convex study runs without it

    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
        )


OURS: Mapping[str, Callable[[int], Aggregator]] = {
    "AngleMix + geometric median": lambda _: make("angle-mix+geometric-median"),
    "RootWeights, root of 100": lambda _: make("root-weights"),
    "FLTrust, root of 100": lambda _: make("fltrust"),
    "mean": lambda _: make("mean"),
}
"""Rules that the published tables do not have, from f."""


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A published table.

    Attributes:
        title: of the table.
        model: of a seed.
        honest: clients that do not attack.
        attackers: numbers of those that do.
        rounds: steps.
        batch: samples of a step.
        rate: η of θ ← θ − ηm, for m ← βm + (1 − β)g.
        decay: weight decay.
        momentum: β.
        attacks: by name, from the share of attackers; None stands for flipped labels.
        theirs: rules of the table, from f.
        published: worst accuracies by rule and f, in percent.
    """

    title: str
    model: Callable[[int], Any]
    honest: int
    attackers: tuple[int, ...]
    rounds: int
    batch: int
    rate: float
    decay: float
    momentum: float
    attacks: Mapping[str, Callable[[float], Attack] | None]
    theirs: Mapping[str, Callable[[int], Aggregator]]
    published: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def rules(self) -> dict[str, Callable[[int], Aggregator]]:
        """Theirs and ours."""
        return {**self.theirs, **OURS}


_RATE, _BETA = 0.01, 0.9
_TAU = 10.0 * _RATE
"""The authors clip at 10 vectors of the size g/(1 − β), which the server takes η of."""
BUCKETING = Table(
    "Bucketing paper, experiment 3, momentum 0.9",
    bucketing_cnn,
    honest=20,
    attackers=(5,),
    rounds=600,
    batch=32,
    rate=_RATE / (1 - _BETA),
    decay=0.0,
    momentum=_BETA,
    attacks={
        "bit flip": Opposite,
        "label flip": None,
        "mimic": lambda s: Mimic(s, warmup=1),
        "IPM 0.1": IPM,
        "ALIE": ALIE,
    },
    theirs={
        "centred clipping": lambda _: CenteredClipping(_TAU, 3, relative=False),
        "bucketing + centred clipping": lambda _: Pipeline(
            Bucketing(2), CenteredClipping(_TAU, 3, relative=False)
        ),
        "geometric median (RFA)": lambda _: GeometricMedian(),
        "bucketing + geometric median (RFA)": lambda _: Pipeline(
            Bucketing(2), GeometricMedian()
        ),
        "Krum": Krum,
        "bucketing + Krum": lambda f: Pipeline(Bucketing(2), Krum(f)),
    },
    published={
        "centred clipping": {5: 97.8},
        "bucketing + centred clipping": {5: 97.9},
        "geometric median (RFA)": {5: 11.3},
        "bucketing + geometric median (RFA)": {5: 68.8},
        "Krum": {5: 1.1},
        "bucketing + Krum": {5: 10.2},
    },
)
"""Published: `outputs/exp3/all/output/exp3.csv` of the authors' repository, means of
three seeds after the last step."""
BYZFL = Table(
    "ByzFL, heat maps, extreme heterogeneity (γ = 0)",
    byzfl_cnn,
    honest=10,
    attackers=(1, 2, 3, 4),
    rounds=800,
    batch=25,
    rate=0.1,
    decay=1e-4,
    momentum=0.9,
    attacks={
        "sign flip": lambda s: IPM(s, epsilon=1.0),
        "IPM, searched": lambda s: IPM(s, epsilon=1.0, search="distance"),
        "ALIE, searched": lambda s: ALIE(s, search="distance"),
    },
    theirs={
        "clip 2 + NNM + geometric median (f)": lambda f: Pipeline(
            Clip(max_norm=0.2), NNM(f), GeometricMedian()
        ),
        "clip 2 + NNM + trimmed mean (f)": lambda f: Pipeline(
            Clip(max_norm=0.2), NNM(f), TrimmedMean(f)
        ),
    },
    published={
        "clip 2 + NNM + geometric median (f)": {1: 87.0, 2: 56.0, 3: 26.0, 4: 27.0},
        "clip 2 + NNM + trimmed mean (f)": {1: 87.0, 2: 61.0, 3: 26.0, 4: 21.0},
    },
)
"""ByzFL clips gradients at 2; an update is η = 0.1 times as long."""
TABLES = {"bucketing": BUCKETING, "byzfl": BYZFL}


# ------------------ runs


@final
@dataclass(frozen=True, slots=True)
class Run:
    """What is run of a table.

    Attributes:
        table: key of `TABLES`.
        f: attackers.
        seed: of clients, draws and the first model.
        rounds: steps; fewer than those of the table are a part of it.
        rules: which; all where empty.
        device: "cpu" or "cuda".
        samples: of the training part; all where 0.
    """

    table: str
    f: int
    seed: int = 0
    rounds: int = 0
    rules: tuple[str, ...] = ()
    device: str = "cpu"
    samples: int = 0


def sorted_shards(labels: Any, honest: tuple[int, ...], n: int, seed: int) -> list[Any]:
    """Samples sorted by label, in equal parts for the honest clients.

    Attackers hold equal shares of all samples, in a random order: what bit and label
    flippers need, and all others do not look at.
    """
    order = np.argsort(labels, kind="stable")
    mixed = np.random.default_rng([seed, 12]).permutation(len(labels))
    parts = iter(np.array_split(order, len(honest)))
    others = iter(np.array_split(mixed, len(honest)))
    return [next(parts) if i in honest else next(others) for i in range(n)]


def run(spec: Run) -> dict[tuple[str, str], float]:
    """Test accuracies in percent by rule and attack; 0 where the run diverged."""
    table = TABLES[spec.table]
    rules = spec.rules or tuple(table.rules)
    together = {name: a for name, a in table.attacks.items() if a is not None}
    share = spec.f / (table.honest + spec.f)
    made = tuple((name, a(share)) for name, a in together.items())
    found = _simulated(spec, rules, tuple(together), OneEach(share, made))
    for name in table.attacks.keys() - together.keys():
        found |= _simulated(spec, rules, (name,), FlippedLabels(share))
    return found


def _simulated(
    spec: Run, rules: tuple[str, ...], attacks: tuple[str, ...], fault: Any
) -> dict[tuple[str, str], float]:
    """One stack of replicas."""
    from hewfl.problems.module import Training, torch_from_arrays  # noqa: PLC0415

    table = TABLES[spec.table]
    n = table.honest + spec.f
    federation = Federation(
        FixedSteps(1), table.batch, scenario=Scenario((fault,)), root=RootSet(100)
    )
    faulty = federation.scenario.assign(spec.seed, federation.batches(n)).faulty
    honest = tuple(i for i in range(n) if i not in faulty)
    data = load("mnist")
    assert data.test is not None
    images = np.asarray(data.features).reshape(-1, 784)
    rng = np.random.default_rng([spec.seed, 11])
    rows = rng.permutation(len(images))[: spec.samples or len(images)]
    problem = torch_from_arrays(
        table.model(spec.seed),
        images[rows],
        data.labels[rows],
        sorted_shards(data.labels[rows], honest, n, spec.seed),
        parts={"test": (np.asarray(data.test[0]).reshape(-1, 784), data.test[1])},
        normalise=PIXELS,
        training=Training(weight_decay=table.decay),
        device=spec.device,
    )
    local = LocalSGD(total=table.rate, worker_momentum=table.momentum)
    methods = [
        Method(local, table.rules[rule](spec.f), name=f"{rule}{BETWEEN}{attack}")
        for rule in rules
        for attack in attacks
    ]
    rounds = spec.rounds or table.rounds
    trace = simulate(
        problem, federation, methods, rounds=rounds, seed=spec.seed, dtype=np.float32,
        evaluate_every=None,
    )  # fmt: skip
    first = replace(  # the training part is large, and nobody asks for its loss
        problem,
        features=problem.features[:1],
        labels=problem.labels[:1],
        offsets=np.zeros(1, dtype=np.int64),
        data_sizes=np.ones(1, dtype=np.int64),
    )
    accuracies = 100 * first.evaluate(trace.anchors.astype(np.float32))["test_accuracy"]
    found = {}
    for method, value in zip(methods, accuracies, strict=True):
        has_ended = "diverged" not in trace.of(method.name)[-1].status
        rule, _, attack = method.name.rpartition(BETWEEN)
        found[rule, attack] = float(f"{value:.5g}") if has_ended else 0.0
    return found


# ------------------ a file of runs

HEADER = ("table", "f", "seed", "rounds", "rule", "attack", "accuracy")
Known = dict[tuple[str, int, int, int, str, str], float]
"""Test accuracies in percent, by all other fields."""


def read_accuracies(file: Path) -> Known:
    """Those of a file; none where it is absent."""
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        rows = [row for row in csv.reader(lines) if len(row) == len(HEADER)]
    return {
        (t, int(f), int(seed), int(rounds), rule, attack): float(accuracy)
        for t, f, seed, rounds, rule, attack, accuracy in rows
        if t in TABLES
    }


def run_missing(spec: Run, file: Path) -> None:
    """Run the rules that a file lacks, and add them to it.

    On a GPU they are one stack. A CPU gains nothing by it, and takes them one by one:
    a study that is stopped loses one rule.
    """
    known, table = read_accuracies(file), TABLES[spec.table]
    rounds = spec.rounds or table.rounds
    place = spec.table, spec.f, spec.seed, rounds
    rules = tuple(
        rule
        for rule in spec.rules or table.rules
        if any((*place, rule, attack) not in known for attack in table.attacks)
    )
    stacks = [(rule,) for rule in rules] if spec.device == "cpu" else [rules]
    for stack in filter(None, stacks):
        found = run(replace(spec, rules=stack))
        file.parent.mkdir(parents=True, exist_ok=True)
        is_new = not file.exists()
        with file.open("a", newline="") as lines:
            writer = csv.writer(lines, lineterminator="\n")
            writer.writerows([HEADER] if is_new else [])
            writer.writerows([*place, *key, value] for key, value in found.items())


def worst(known: Known, spec: Run, rule: str) -> tuple[str, float] | None:
    """The attack of the lowest accuracy, and that; None where one was not run."""
    table = TABLES[spec.table]
    place = spec.table, spec.f, spec.seed, spec.rounds or table.rounds
    found = {a: known.get((*place, rule, a)) for a in table.attacks}
    ran = {a: v for a, v in found.items() if v is not None}
    if len(ran) < len(found):
        return None
    attack = min(ran, key=lambda a: ran[a])
    return attack, ran[attack]
