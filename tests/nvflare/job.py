"""The simulated job, in a process of its own: NVFLARE leaves threads behind."""

import sys
from pathlib import Path

from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from hewfl.nvflare import HewAggregator

SITES = 4

if __name__ == "__main__":
    recipe = NumpyFedAvgRecipe(
        name="known",
        model=[[0.0, 0.0, 0.0]],
        min_clients=SITES,
        num_rounds=2,
        train_script=str(Path(__file__).with_name("site.py")),
        aggregator=HewAggregator("mean", server_step={"momentum": 0.5}),
    )
    recipe.execute(SimEnv(num_clients=SITES, workspace_root=sys.argv[1]))
