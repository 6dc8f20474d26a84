"""What every rank of the tests needs, imported once: ranks are forks of a server.

Importing torch takes seconds of a processor; four ranks on two cores would wait for it
in turn.
"""

import os

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
os.environ["OMP_NUM_THREADS"] = "1"

from jaxtyping import install_import_hook

install_import_hook("hewfl.torch", "beartype.beartype")
import torch
import torch.distributed
import torch.nn.parallel

import hewfl.torch

torch.set_num_threads(1)
READY = hewfl.torch is not None
