"""NVFLARE's FedAvg with an aggregator of hewfl, in its simulator or as a job folder."""

import argparse
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from hewfl.data import load, prepare
from hewfl.nvflare import HewAggregator

HERE = Path(__file__).parent
parser = argparse.ArgumentParser()
parser.add_argument(
    "--aggregator", default="majority-sieve", help="fedavg: NVFLARE's own"
)
parser.add_argument("--sites", type=int, default=5)
parser.add_argument("--attackers", type=int, default=0)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--workspace", default="/tmp/hewfl-nvflare")
parser.add_argument("--export", help="write the job here instead of simulating it")
options = parser.parse_args()

data = prepare(load("digits"), 0)
is_theirs = options.aggregator == "fedavg"
recipe = NumpyFedAvgRecipe(
    name="digits",
    model=np.zeros((data.features.shape[1], 10)).tolist(),
    min_clients=options.sites,
    num_rounds=options.rounds,
    train_script=str(HERE / "client.py"),
    train_args=f"--sites {options.sites} --attackers {options.attackers}",
    aggregator=None if is_theirs else HewAggregator(options.aggregator),
)
if options.export:
    recipe.export(options.export)
else:
    environment = SimEnv(num_clients=options.sites, workspace_root=options.workspace)
    run = recipe.execute(environment)
    weights = np.load(next(Path(run.get_result()).rglob("models/server.npy")))
    assert data.test is not None, "digits are split"
    X, y = data.test
    accuracy = ((X @ weights).argmax(axis=1) == y).mean()
    print(f"accuracy with {options.aggregator}: {accuracy:.3f}")
