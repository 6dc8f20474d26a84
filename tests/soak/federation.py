"""A federation of Flower messages through faults of clients and kills of the server.

    python -m tests.soak.federation FOLDER [--rounds 2000] [--kills 20] [--seed 0]

Twenty clients of Flower's own kind train on the digits. Four of them attack in every
round (together, in the direction that undoes a step). Any client may in any round send
NaN, lie about its size or its metrics, send arrays of another shape, raise, not answer,
answer twice or come back as a new node. The strategy is `HewStrategy` with the default
rule and server momentum, saved after every round.

The run is made twice: once undisturbed, once with the server's process killed at random
moments and started again. Both must leave the same model, the same states and the same
trace, byte for byte, and the undisturbed one must not grow in memory.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hewfl import ServerStep
from hewfl.data import load
from hewfl.flower import HewStrategy
from tests.flower.federation import StubGrid
from tests.soak.measures import conclude, fate, growth, kill_rounds, memory, options_of

CLIENTS, ATTACKERS, STEPS, BATCH = 20, 4, 4, 16
CHANCES = {
    "nan": 0.02,
    "size": 0.02,
    "metrics": 0.02,
    "shape": 0.01,
    "raises": 0.02,
    "silent": 0.02,
    "twice": 0.02,
    "unmoved": 0.01,
}
DIGITS = load("digits")
X = np.asarray(DIGITS.features, dtype=np.float32) / 16
Y = np.asarray(DIGITS.labels)


def trained(i: int, t: int, seed: int, model: list[Any]) -> list[Any]:
    """Some steps of SGD on the client's share of the digits."""
    W, b = (array.copy() for array in model)
    rows = np.arange(i, len(X), CLIENTS)
    rng = np.random.default_rng((seed, t, i, 1))
    for _ in range(STEPS):
        pick = rng.choice(rows, BATCH)
        scores = X[pick] @ W + b
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(BATCH), Y[pick]] -= 1.0
        W -= 0.1 * X[pick].T @ p / BATCH
        b -= 0.1 * p.mean(axis=0)
    return [W, b]


def client_of(seed: int) -> ClientApp:
    """The app of all clients, honest or not."""
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["partition-id"])
        t = int(message.content["config"]["server-round"])
        model = message.content["arrays"].to_numpy_ndarrays()
        ends = trained(i, t, seed, model)
        told: dict[str, float] = {"num-examples": len(X) // CLIENTS}
        told |= {"num-steps": STEPS, "train_loss": 1.0, "partition-id": i}
        if i < ATTACKERS:
            ends = [x - 10 * (y - x) for x, y in zip(model, ends, strict=True)]
        what = fate(seed, t, i, CHANCES)
        if what == "nan":
            ends[0][t % 64, i % 10] = np.nan
        elif what == "size":
            told["num-examples"] = (0, -1, 10**12)[t % 3]
        elif what == "metrics":
            told["train_loss"] = (float("nan"), 1e300, -1.0)[t % 3]
        elif what == "shape":
            ends = [ends[0].T, ends[1]] if t % 2 else ends[:1]
        elif what == "raises":
            raise RuntimeError("out of memory on the device")
        elif what == "unmoved":
            ends = model
        content = {"arrays": ArrayRecord(ends), "metrics": MetricRecord(told)}
        return Message(RecordDict(content), reply_to=message)

    app.train()(train)
    return app


def renew_node(grid: StubGrid, t: int, seed: int) -> None:
    """After every seventh round a client comes back as a node with another id."""
    if t % 7 == 0:
        grid.rng = np.random.default_rng((seed, t))
        gone = int(grid.rng.integers(CLIENTS))
        grid.disconnect(gone)
        grid.connect(gone)


def serve(folder: Path, rounds: int, seed: int) -> None:
    """The server, from wherever the folder says that it stopped."""
    grid = StubGrid(client_of(seed), CLIENTS, seed=seed)
    manifest = folder / "run" / "seed-0" / "manifest.json"
    done = json.loads(manifest.read_text())["round"] if manifest.exists() else 0
    for t in range(1, done + 1):  # the nodes outlive the server
        renew_node(grid, t, seed)
    grid.rng = np.random.default_rng()  # replies come in any order

    def network(question: Message, answer: Message) -> list[Message]:
        t = int(question.content["config"]["server-round"])
        what = fate(seed, t, grid.partition_of(question), CHANCES)
        return [answer] * {"silent": 0, "twice": 2}.get(what, 1)

    def after(t: int, numbers: Any) -> None:
        del numbers
        grid.sent.clear()  # the stub keeps all that was sent
        renew_node(grid, t, seed)
        grid.rng = np.random.default_rng()
        with (folder / "memory.txt").open("a") as file:
            file.write(f"{t} {memory():.3f}\n")

    grid.tamper = network
    strategy = HewStrategy(
        fraction_evaluate=0.0,
        server_step=ServerStep(momentum=0.9),
        folder=folder / "run",
        on_round=after,
    )
    start = [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]
    strategy.start(grid, ArrayRecord(start), rounds)


def spawn(folder: Path, rounds: int, seed: int) -> "subprocess.Popen[bytes]":
    folder.mkdir(parents=True, exist_ok=True)
    told = f"Path({str(folder)!r}), {rounds}, {seed}"
    code = f"from tests.soak.federation import *; serve({told})"
    log = (folder / "log").open("ab")
    return subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)


def rounds_done(folder: Path) -> int:
    path = folder / "memory.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(lines[-1].split()[0]) if lines else 0


def killed_run(folder: Path, rounds: int, seed: int, kills: int) -> list[int]:
    """Start, kill and start again; the rounds after which it was killed."""
    rng, done = np.random.default_rng((seed, 78)), []
    for at in kill_rounds(seed, rounds, kills):
        server = spawn(folder, rounds, seed)
        while rounds_done(folder) < at and server.poll() is None:
            time.sleep(0.01)
        time.sleep(float(rng.random()) * 0.05)
        if server.poll():
            raise SystemExit((folder / "log").read_text()[-3000:])
        if server.poll() is not None:
            break
        server.kill()
        server.wait()
        done.append(rounds_done(folder))
    server = spawn(folder, rounds, seed)
    if server.wait():
        raise SystemExit((folder / "log").read_text()[-3000:])
    return done


def accuracy(folder: Path) -> float:
    """Of the model that a run left, on all digits."""
    from hewfl.flower import load_model  # noqa: PLC0415 - beside its only use

    W, b = load_model(folder / "run").to_numpy_ndarrays()
    return float((np.argmax(X @ W + b, axis=1) == Y).mean())


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All that a run leaves, but how long it took."""
    files = [p for p in sorted((folder / "run").rglob("*")) if p.is_file()]
    kept = [p for p in files if p.name not in ("times.json", "manifest.json")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


def main() -> None:
    """Both runs, and what they have to do with each other."""
    given = options_of(__doc__).parse_args()
    whole, killed = given.folder / "whole", given.folder / "killed"
    if spawn(whole, given.rounds, given.seed).wait():
        raise SystemExit((whole / "log").read_text()[-3000:])
    at = killed_run(killed, given.rounds, given.seed, given.kills)
    lines = (whole / "memory.txt").read_text().splitlines()
    sizes = [float(line.split()[1]) for line in lines]
    one, two = bytes_of(whole), bytes_of(killed)
    fates = [
        fate(given.seed, t, i, CHANCES)
        for t in range(1, given.rounds + 1)
        for i in range(CLIENTS)
    ]
    report = {
        "rounds": given.rounds,
        "killed after rounds": at,
        "files that differ": sorted(
            name for name in one.keys() | two.keys() if one.get(name) != two.get(name)
        ),
        "faults": {name: fates.count(name) for name in CHANCES},
        "memory, MB": [sizes[0], sizes[len(sizes) // 4], sizes[-1]],
        "growth, MB": round(growth(sizes), 3),
        "accuracy": accuracy(whole),
    }
    conclude(given.folder, report, report["files that differ"])


if __name__ == "__main__":
    main()
