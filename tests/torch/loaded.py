"""What every rank has loaded: hewfl.torch with its types checked, and the scenarios."""

import os

from jaxtyping import install_import_hook

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
os.environ["OMP_NUM_THREADS"] = "1"
install_import_hook("hewfl.torch", "beartype.beartype")

import pytest  # noqa: E402, F401 - of every module with scenarios
import tests.torch.scenarios  # noqa: E402, F401 - after the hook
import torch  # noqa: E402

# the first optimiser of a process loads a second's worth of modules: before any clock
torch.optim.SGD([torch.zeros(1)])
