"""A mirror on this machine that can misbehave, and small data sets to serve."""

import contextlib
import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from numpy.typing import NDArray

from hewfl.data.catalogue import CATALOGUE, DataFile, DatasetInfo


@dataclass
class Mirror:
    """What it serves, how it fails, and how many requests it had.

    `cuts` are the bytes after which the first answers break off; `codes` are statuses
    that the first answers have instead of content.
    """

    files: dict[str, bytes]
    cuts: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    requests: int = 0
    url: str = ""


@contextlib.contextmanager
def serve(mirror: Mirror) -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.requests += 1
            content = mirror.files.get(self.path.lstrip("/"))
            if mirror.codes or content is None:
                self.send_error(mirror.codes.pop(0) if mirror.codes else 404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            stop = mirror.cuts.pop(0) if mirror.cuts else len(content)
            self.wfile.write(content[:stop])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    mirror.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield mirror
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def idx(array: NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


def small_images() -> dict[str, bytes]:
    """Four files like those of MNIST: 30 and 10 images of 28 × 28, labels i mod 10."""
    rng = np.random.default_rng(3)
    names = [file.path for file in CATALOGUE["mnist"].files]
    arrays = [
        rng.integers(0, 256, (30, 28, 28), dtype=np.uint8),
        (np.arange(30) % 10).astype(np.uint8),
        rng.integers(0, 256, (10, 28, 28), dtype=np.uint8),
        (np.arange(10) % 10).astype(np.uint8),
    ]
    return {name: idx(array) for name, array in zip(names, arrays, strict=True)}


def small_mnist(files: dict[str, bytes], *mirrors: str) -> DatasetInfo:
    """MNIST's entry with the checksums of other files, and other mirrors."""
    listed = tuple(
        DataFile(
            path,
            len(content),
            (hashlib.sha256(content).hexdigest(),),
            urls=tuple(f"{mirror}/{path}" for mirror in mirrors),
        )
        for path, content in files.items()
    )
    return replace(CATALOGUE["mnist"], files=listed, samples=(30, 10))
