"""The modules of the paper's two deep-learning lines.

The paper names both without listing their layers: "a medium-sized convolutional
network", and a trainable head of 593,668 parameters on a frozen encoder. The head is
the one that DistilBERT's sequence classifier brings, which has just that number. The
network is our choice.
"""

from typing import Any

from hewfl.problems.module.network import torch


def medium_cnn(seed: int, dropout: float = 0.15) -> Any:
    """Three convolutions and two dense layers for 28 × 28 images, 10 classes.

        1 → 32 → pool → 64 → pool → 64 → dense 128 → 10,     458,570 parameters

    Args:
        seed: of torch's default initialisation; its global generator is left alone.
        dropout: before each dense layer.

    >>> sum(p.numel() for p in medium_cnn(seed=0).parameters())
    458570
    """
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Dropout(dropout), nn.Linear(64 * 7 * 7, 128), nn.ReLU()),
            *(nn.Dropout(dropout), nn.Linear(128, 10)),
        )


def classifier_head(seed: int, dropout: float = 0.2, classes: int = 4) -> Any:
    """DistilBERT's classification head on 768 features: 768 → 768 → classes.

    Layers, dropout and initialisation (normal of deviation 0.02, no bias) as in
    `DistilBertForSequenceClassification` of Hugging Face transformers.

    Args:
        seed: of the initialisation.
        dropout: between the two layers.
        classes: outputs.

    >>> sum(p.numel() for p in classifier_head(seed=0).parameters())
    593668
    """
    nn, generator = torch.nn, torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        head = nn.Sequential(
            nn.Linear(768, 768),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(768, classes),
        )
    for layer in (head[0], head[3]):
        nn.init.normal_(layer.weight, std=0.02, generator=generator)
        nn.init.zeros_(layer.bias)
    return head
