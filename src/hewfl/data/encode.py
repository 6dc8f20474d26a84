"""Texts as features of a frozen encoder, computed once.

The model is any encoder of Hugging Face transformers, in a folder or by its name on the
hub. Blocks of rows are kept in the folder `encoded` of the user cache as they are
finished, so an encoding that was interrupted goes on, and one that was finished is
read. They are keyed by texts, model and options, and may be deleted at any time.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from jaxtyping import Float32

from hewfl.core.atomic import replacing
from hewfl.core.checks import Array, invalid, wholes
from hewfl.data.load import ag_news_texts
from hewfl.data.places import cache_root, file_sha256
from hewfl.errors import DataError, MissingExtraError

FORMAT = 1
"""Raised when the same texts and model give other rows, so that old ones are not read.
"""

MAX_LENGTH = 192
"""Tokens of a text; the paper's (app:text_distilbert_head_only)."""

OnBatch = Callable[[int, int], None]
"""Told the rows that are done and the rows there are."""

_BLOCK = 512
_POOLINGS = ("cls", "mean")


@final
@dataclass(frozen=True, slots=True)
class _Options:
    pooling: str
    max_length: int
    batch_size: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Encoder:
    """A loaded model; `identity` tells its weights and tokenizer from all others."""

    torch: Any
    tokenizer: Any
    network: Any
    identity: str
    device: str
    options: _Options


def encode(  # noqa: PLR0913 - options with the paper's defaults
    texts: Sequence[str],
    model: str | Path,
    *,
    batch_size: int = 64,
    max_length: int = MAX_LENGTH,
    pooling: str = "cls",
    device: str = "cpu",
    on_batch: OnBatch | None = None,
) -> Float32[Array, "m width"]:
    """Features of texts: one row for each, from the encoder's last layer.

    The encoder is in evaluation mode and single precision; how texts are batched
    changes rows by rounding only.

    Args:
        texts: at least one.
        model: folder as `save_pretrained` writes it, or a name on the hub.
        batch_size: texts encoded at once.
        max_length: tokens, with the special ones, that a text is cut to.
        pooling: `cls`, the first token, is what DistilBERT's classifier looks at;
            `mean` is over all tokens of the text.
        device: of PyTorch.
        on_batch: called at the start, with the rows found in the cache, and after each
            batch.

    Raises:
        InvalidInputError: an argument breaks its rule.
        DataError: the model cannot be loaded or is no encoder, or the cache cannot be
            written.
        MissingExtraError: torch or transformers is not installed.
    """
    _check_arguments(texts, pooling, batch_size, max_length)
    encoder = _load_encoder(model, device, _Options(pooling, max_length, batch_size))
    folder = _folder(encoder, model, texts)
    blocks = _known_blocks(folder, len(texts))
    done = sum(len(rows) for rows in blocks.values())

    def report(more: int) -> None:
        nonlocal done
        done += more
        if on_batch is not None:
            on_batch(done, len(texts))

    report(0)
    for start in range(0, len(texts), _BLOCK):
        if start not in blocks:
            block = texts[start : start + _BLOCK]
            rows = _encode_block(encoder, block, report)
            if not np.isfinite(rows).all():
                row = start + int(np.argmin(np.isfinite(rows).all(axis=1)))
                raise DataError(f"{model}: features of text {row} must be finite")
            _write(_block_file(folder, start, len(block)), partial(np.save, arr=rows))
            blocks[start] = rows
    return np.concatenate([blocks[start] for start in sorted(blocks)])


def encode_ag_news(
    model: str | Path,
    output: Path | None = None,
    *,
    batch_size: int = 64,
    pooling: str = "cls",
    device: str = "cpu",
    on_batch: OnBatch | None = None,
) -> Path:
    """Encode AG News into one NPZ file that `load` and `data.name` of a spec take.

    Its arrays are X, y, X_test and y_test, rows and labels as in `load("ag_news")`, and
    `about`, a JSON text with model and options.

    Args:
        model: as for `encode`.
        output: folder of the file; `encoded` in the user cache by default.
        batch_size: as for `encode`.
        pooling: as for `encode`.
        device: as for `encode`.
        on_batch: as for `encode`.

    Returns:
        The file, `ag_news-<model>.npz`, or `ag_news-<model>-mean.npz` for the mean.

    Raises:
        InvalidInputError: an argument breaks its rule.
        DataError: texts are absent, or as for `encode`.
        MissingExtraError: torch or transformers is not installed.
    """
    train, test = ag_news_texts()
    features = encode(
        (*train.texts, *test.texts),
        model,
        batch_size=batch_size,
        pooling=pooling,
        device=device,
        on_batch=on_batch,
    )
    about = {
        "model": _label(model),
        "pooling": pooling,
        "max_length": MAX_LENGTH,
        "format": FORMAT,
    }
    arrays: dict[str, Any] = {
        "X": features[: len(train.texts)],
        "y": train.labels,
        "X_test": features[len(train.texts) :],
        "y_test": test.labels,
        "about": np.array(json.dumps(about)),
    }
    suffix = "" if pooling == "cls" else f"-{pooling}"
    folder = _cache() if output is None else output.expanduser()
    file = folder / f"ag_news-{_label(model)}{suffix}.npz"
    _write(file, lambda stream: np.savez(stream, **arrays))
    return file


def _check_arguments(
    texts: Sequence[str], pooling: str, batch_size: int, max_length: int
) -> None:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise invalid("texts", "a sequence of texts", repr(texts)[:80])
    if not texts:
        raise invalid("texts", "at least one text", "none")
    if pooling not in _POOLINGS:
        raise invalid("pooling", f"one of {', '.join(_POOLINGS)}", repr(pooling))
    wholes("batch_size", batch_size, least=1)
    wholes("max_length", max_length, least=1)


def _load_encoder(model: str | Path, device: str, options: _Options) -> _Encoder:
    """Load tokenizer and weights: from the folder if there is one, else by name."""
    folder = Path(model).expanduser()
    is_local = folder.is_dir()
    if not is_local and (isinstance(model, Path) or str(model)[:1] in ("/", ".", "~")):
        raise DataError(f"{model}: no such folder; {_HOW_TO_GET}")
    torch, transformers = _packages()
    place = str(folder) if is_local else str(model)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            place, local_files_only=is_local, padding_side="right"
        )
        network, told = transformers.AutoModel.from_pretrained(
            place, local_files_only=is_local, output_loading_info=True
        )
    # a hub that cannot be reached, an absent file, an unknown kind of model, damaged
    # weights: each library below has errors of its own for them
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = f"{model}: no encoder could be loaded ({lines[0]}); {_HOW_TO_GET}"
        raise DataError(text) from error
    _check_encoder(model, tokenizer, network.config, told["missing_keys"])
    positions = getattr(network.config, "max_position_embeddings", None)
    if positions is not None and options.max_length > positions:
        rule = f"at most {positions}, the positions of this model"
        raise invalid("max_length", rule, options.max_length)
    try:
        network = network.to(device).float().eval()
    except (RuntimeError, AssertionError) as error:
        raise invalid("device", "one that PyTorch sees", repr(device)) from error
    own = _folder_sha256(folder) if is_local else _weights_sha256(network)
    identity = own if is_local else f"{model} {own}"
    return _Encoder(torch, tokenizer, network, identity, device, options)


def _check_encoder(
    model: str | Path, tokenizer: Any, config: Any, missing: Collection[str]
) -> None:
    # transformers would go on with random numbers; the pooler is not looked at
    absent = sorted(key for key in missing if not key.startswith("pooler."))
    if absent:
        text = f"{len(absent)} weights are missing, such as {absent[0]}"
        raise DataError(f"{model}: no encoder could be loaded ({text}); {_HOW_TO_GET}")
    if getattr(config, "is_encoder_decoder", False):
        raise DataError(f"{model} must be an encoder; got an encoder with a decoder")
    if tokenizer.pad_token is None:
        raise DataError(f"{model}: its tokenizer must have a token for padding")


_HOW_TO_GET = (
    "give a local folder as `save_pretrained` writes it, with config.json, the "
    "tokenizer's files and the weights"
)


def _packages() -> tuple[Any, Any]:
    try:
        return import_module("torch"), import_module("transformers")
    except ImportError as error:
        text = "encoding texts needs torch and transformers: pip install 'hewfl[text]'"
        raise MissingExtraError(text) from error


def _folder_sha256(folder: Path) -> str:
    """Checksum of the files that a model may be made of, by name."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    known = [(f.name, file_sha256(f)) for f in files if not f.name.startswith(".")]
    return _digest(known)


def _weights_sha256(network: Any) -> str:
    """Checksum of the weights: what a name on the hub stands for may change."""
    digest = hashlib.sha256()
    for name, weights in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(weights.cpu().contiguous().numpy())
    return digest.hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _label(model: str | Path) -> str:
    """A model's name as a part of file names."""
    folder = Path(model).expanduser()
    name = folder.resolve().name if folder.is_dir() else str(model)
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"


def _cache() -> Path:
    return cache_root() / "encoded"


def _folder(encoder: _Encoder, model: str | Path, texts: Sequence[str]) -> Path:
    """Where blocks are kept: all that rows depend on, but for rounding, is the key."""
    options = [encoder.options.pooling, encoder.options.max_length]
    key = _digest([FORMAT, encoder.identity, options, list(texts)])
    return _cache() / f"{_label(model)}-{key[:16]}"


def _block_file(folder: Path, start: int, count: int) -> Path:
    return folder / f"rows-{start:08}-{start + count:08}.npy"


def _known_blocks(folder: Path, m: int) -> dict[int, Float32[Array, "_ width"]]:
    """Blocks of earlier calls, by first row; those that are not sound are left out."""
    blocks = {}
    for start in range(0, m, _BLOCK):
        count = min(_BLOCK, m - start)
        try:
            file = _block_file(folder, start, count)
            rows = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            continue
        if rows.ndim == 2 and len(rows) == count and rows.dtype == np.float32:
            blocks[start] = rows
    return blocks


def _batches(block: Sequence[str], batch_size: int) -> list[list[int]]:
    """Rows in batches of texts of similar length, so that little is padded."""
    order = sorted(range(len(block)), key=lambda i: len(block[i]))
    return [order[k : k + batch_size] for k in range(0, len(order), batch_size)]


def _encode_block(
    encoder: _Encoder, block: Sequence[str], report: Callable[[int], None]
) -> Float32[Array, "b width"]:
    parts, order = [], []
    for batch in _batches(block, encoder.options.batch_size):
        parts.append(_encode_batch(encoder, [block[i] for i in batch]))
        order += batch
        report(len(batch))
    return np.concatenate(parts)[np.argsort(order)]


def _encode_batch(encoder: _Encoder, texts: list[str]) -> Float32[Array, "b width"]:
    tokens = encoder.tokenizer(
        texts,
        padding=True,
        truncation=True,
        max_length=encoder.options.max_length,
        return_tensors="pt",
    ).to(encoder.device)
    with encoder.torch.inference_mode():
        states = encoder.network(**tokens).last_hidden_state  # (b, length, width)
        if encoder.options.pooling == "cls":
            pooled = states[:, 0]
        else:
            mask = tokens["attention_mask"][:, :, None].to(states.dtype)
            pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
    return np.asarray(pooled.cpu().numpy(), np.float32)


def _write(file: Path, save: Callable[[IO[bytes]], Any]) -> None:
    """Write a file whole or not at all, by a function that fills a stream."""
    try:
        with replacing(file) as stream:
            save(stream)
    except OSError as error:
        raise DataError(f"cannot write {file} ({error})") from error
