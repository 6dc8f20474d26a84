"""A frozen text encoder of Hugging Face transformers: loading it, texts to rows."""

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float32
from hewfl.core.validation import Array, invalid
from hewfl.data.paths import file_sha256
from hewfl.errors import DataError, MissingExtraError

_HOW_TO_GET = (
    "give a local folder as `save_pretrained` writes it, with config.json, the "
    "tokenizer's files and the weights"
)


@final
@dataclass(frozen=True, slots=True)
class Options:
    """How texts become rows.

    Attributes:
        pooling: `cls`, the first token of a text, or `mean` over its tokens.
        max_length: tokens, with the special ones, that a text is cut to.
        batch_size: texts encoded at once.
    """

    pooling: str
    max_length: int
    batch_size: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """A frozen text encoder, loaded.

    Attributes:
        torch: the package.
        tokenizer: texts to tokens.
        network: tokens to states, in evaluation mode and single precision.
        identity: tells its weights and tokenizer from those of all others.
        device: where the network is.
        options: how texts become rows.
    """

    torch: Any
    tokenizer: Any
    network: Any
    identity: str
    device: str
    options: Options


def load_encoder(model: str | Path, device: str, options: Options) -> Encoder:
    """Load tokenizer and weights: from the folder if there is one, else by name.

    Raises:
        InvalidInputError: the device is unknown, or texts too long for the model.
        DataError: the model cannot be loaded or is no encoder.
        MissingExtraError: torch or transformers is not installed.
    """
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
    return Encoder(torch, tokenizer, network, identity, device, options)


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


def _packages() -> tuple[Any, Any]:
    try:
        return import_module("torch"), import_module("transformers")
    except ImportError as error:
        text = "encoding texts needs torch and transformers: install hewfl's extra text"
        raise MissingExtraError(text) from error


def _folder_sha256(folder: Path) -> str:
    """Checksum of the files that a model may be made of, by name."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    known = [(f.name, file_sha256(f)) for f in files if not f.name.startswith(".")]
    return digest(known)


def _weights_sha256(network: Any) -> str:
    """Checksum of the weights: what a name on the hub stands for may change."""
    digest = hashlib.sha256()
    for name, weights in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(weights.cpu().contiguous().numpy())
    return digest.hexdigest()


def digest(value: object) -> str:
    """Checksum of what JSON can write."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _batches(block: Sequence[str], batch_size: int) -> list[list[int]]:
    """Rows in batches of texts of similar length, so that little is padded."""
    order = sorted(range(len(block)), key=lambda i: len(block[i]))
    return [order[k : k + batch_size] for k in range(0, len(order), batch_size)]


def encode_block(
    encoder: Encoder, block: Sequence[str], report: Callable[[int], None]
) -> Float32[Array, "b width"]:
    """Rows of some texts, in their order."""
    parts, order = [], []
    for batch in _batches(block, encoder.options.batch_size):
        parts.append(_encode_batch(encoder, [block[i] for i in batch]))
        order += batch
        report(len(batch))
    return np.concatenate(parts)[np.argsort(order)]


def _encode_batch(encoder: Encoder, texts: list[str]) -> Float32[Array, "b width"]:
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
