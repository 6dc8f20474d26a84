"""Exact weights for models trained elsewhere: state dicts in, state dict out.

Any loop that averages `state_dict`s can call `aggregate` instead. Its arguments are the
global model, the clients' models, and the total step size η_i H_i of each client.
"""

from collections.abc import Sequence

import torch
from torch import nn

from hewfl import combine, post_local_weights

StateDict = dict[str, torch.Tensor]


def flat(state: StateDict) -> torch.Tensor:
    return torch.cat([value.detach().reshape(-1) for value in state.values()])


def aggregate(
    anchor: StateDict,
    clients: Sequence[StateDict],
    total_steps: Sequence[float],
    curvature: float,
) -> tuple[StateDict, str]:
    """Algorithm 3: `total_steps[i]` is η_i H_i, step size times steps of client i."""
    x = flat(anchor)
    displacements = [flat(client) - x for client in clients]
    pairs = zip(displacements, total_steps, strict=True)
    reference = -torch.stack([d / eta_h for d, eta_h in pairs]).mean(dim=0)
    solution = post_local_weights(displacements, reference, curvature)
    new = x + combine(displacements, solution.weights)
    sizes = [value.numel() for value in anchor.values()]
    parts = zip(anchor.items(), torch.split(new, sizes), strict=True)
    return {key: part.reshape(v.shape) for (key, v), part in parts}, solution.status


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(20, 2)
    anchor = {key: value.clone() for key, value in model.state_dict().items()}
    inputs, labels = torch.randn(256, 20), torch.randint(0, 2, (256,))
    clients, total_steps, eta = [], [], 0.1
    for steps in (1, 2, 4, 8):  # four clients, unequal work
        model.load_state_dict(anchor)
        optimizer = torch.optim.SGD(model.parameters(), lr=eta / steps)
        for _ in range(steps):
            batch = torch.randint(0, 256, (16,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        clients.append({k: v.clone() for k, v in model.state_dict().items()})
        total_steps.append(eta)
    state, status = aggregate(anchor, clients, total_steps, curvature=1.0)
    model.load_state_dict(state)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    print(f"loss after the round {loss:.4f}; weights {status}")


if __name__ == "__main__":
    main()
