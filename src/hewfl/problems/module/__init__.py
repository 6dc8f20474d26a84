"""Any PyTorch module as a federated problem; the part of problems that needs torch.

Its names are imported when asked for, so that `import hewfl` does not load torch.
"""

from hewfl.problems.module.torch_module import TorchModule, torch_from_arrays
from hewfl.problems.module.training import Training

__all__ = ["TorchModule", "Training", "torch_from_arrays"]
