"""Data of your own: `python my_data.py` writes data.csv. Put yours in its place."""

import csv

import numpy as np

CLIENTS, SAMPLES, FEATURES = 10, 60, 5


def main() -> None:
    """Write rows of features, a client and a label; clients differ in their means."""
    rng = np.random.default_rng(0)
    slope = rng.normal(0.0, 2.0, FEATURES)
    with open("data.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*(f"x{k}" for k in range(FEATURES)), "client", "label"])
        for client in range(CLIENTS):
            features = rng.normal(rng.normal(size=FEATURES), 1.0, (SAMPLES, FEATURES))
            labels = features @ slope + rng.logistic(size=SAMPLES) > 0
            for row, label in zip(features, labels, strict=True):
                numbers = [f"{value:.4f}" for value in row]
                table.writerow([*numbers, f"client-{client}", "yes" if label else "no"])


if __name__ == "__main__":
    main()
