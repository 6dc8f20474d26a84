"""AG News as features of a frozen text encoder, for the paper's head line.

    pip install 'hewfl[text]'
    python examples/encode_texts.py path/to/distilbert-base-uncased ag_news.npz
    hewfl run spec.toml --set data.name=ag_news.npz

The model is a folder as `save_pretrained` of Hugging Face transformers writes it, or a
name on the hub. The NPZ file has the arrays X, y, X_test and y_test. Rows and labels
are those of `hewfl.data.load("ag_news")`, whose features come from MPNet.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hewfl.data import ag_news_texts

BATCH_SIZE = 64
MAX_LENGTH = 192
"""Tokens of a text; the paper's (app:text_distilbert_head_only)."""


def load_encoder(model: str, device: str) -> tuple[Any, Any]:
    """Tokenizer and network, in evaluation mode and single precision."""
    transformers = import_module("transformers")  # optional

    tokenizer = transformers.AutoTokenizer.from_pretrained(model, padding_side="right")
    network, info = transformers.AutoModel.from_pretrained(
        model, output_loading_info=True
    )
    # transformers fills missing weights with random numbers; the pooler is not used
    missing = [key for key in info["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        sys.exit(f"{model}: the checkpoint lacks weights, such as {missing[0]}")
    return tokenizer, network.to(device).float().eval()


def encode(
    texts: Sequence[str], encoder: tuple[Any, Any], pooling: str, device: str
) -> NDArray[np.float32]:
    """One row per text, from the last layer of the encoder.

    Texts of similar length share a batch, so that little is padded. The batches change
    rows by rounding only.
    """
    import torch  # noqa: PLC0415 - optional

    tokenizer, network = encoder
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    parts = []
    for start in range(0, len(order), BATCH_SIZE):
        batch = [texts[row] for row in order[start : start + BATCH_SIZE]]
        tokens = tokenizer(
            batch,
            padding=True,
            truncation=True,
            max_length=MAX_LENGTH,
            return_tensors="pt",
        ).to(device)
        with torch.inference_mode():
            states = network(**tokens).last_hidden_state  # (batch, length, width)
            if pooling == "cls":  # the token that DistilBERT's classifier reads
                pooled = states[:, 0]
            else:
                mask = tokens["attention_mask"][:, :, None].to(states.dtype)
                pooled = (states * mask).sum(1) / mask.sum(1)
        parts.append(pooled.cpu().numpy())
        print(f"\r{start + len(batch)} of {len(texts)} texts", end="", file=sys.stderr)
    print(file=sys.stderr)
    rows: NDArray[np.float32] = np.concatenate(parts)[np.argsort(order)]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Encode AG News into an NPZ file.")
    parser.add_argument("model", nargs="?", help="folder, or name on the hub")
    parser.add_argument("output", nargs="?", type=Path, help="NPZ file to write")
    parser.add_argument("--pooling", choices=("cls", "mean"), default="cls")
    parser.add_argument("--device", default="cpu", help="of PyTorch: cpu, cuda, ...")
    asked = parser.parse_args(arguments)
    if asked.model is None or asked.output is None:
        parser.print_help()
        return
    train, test = ag_news_texts()
    encoder = load_encoder(asked.model, asked.device)
    X, X_test = (
        encode(part.texts, encoder, asked.pooling, asked.device)
        for part in (train, test)
    )
    np.savez(asked.output, X=X, y=train.labels, X_test=X_test, y_test=test.labels)
    print(f"for a spec: --set data.name={asked.output}")


if __name__ == "__main__":
    main()
