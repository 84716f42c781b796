"""A tiny data set in all formats, and a server that serves it well or badly."""

import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from momentprop.data.arrays import Arrays
from momentprop.data.catalogue import Recipe
from momentprop.data.decode import decode_idx
from momentprop.data.download import Original
from momentprop.data.sources import ByHand, Mirrors
from momentprop.data.store import checksum


def arrays(count, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    return Arrays(images, torch.arange(count).remainder(10).to(torch.uint8))


def idx(tensor):
    return struct.pack(f">BBBB{tensor.ndim}I", 0, 0, 8, tensor.ndim, *tensor.shape) + tensor.numpy().tobytes()


SPLITS = {"train": arrays(60, (1, 28, 28), seed=1), "test": arrays(20, (1, 28, 28), seed=2)}

UNPACKED = {
    "train-images-idx3-ubyte": idx(SPLITS["train"].images[:, 0]),
    "train-labels-idx1-ubyte": idx(SPLITS["train"].labels),
    "t10k-images-idx3-ubyte": idx(SPLITS["test"].images[:, 0]),
    "t10k-labels-idx1-ubyte": idx(SPLITS["test"].labels),
}

FILES = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in UNPACKED.items()}

LARGE = "train-images-idx3-ubyte.gz"  # about 47 kB


def recipe(*mirrors, more=()):
    originals = tuple(
        Original(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in FILES.items()
    )
    sources = (ByHand(tuple(FILES), decode_idx), Mirrors(mirrors, originals, decode_idx), *more)
    checksums = {split: checksum(content) for split, content in SPLITS.items()}
    return Recipe("a tiny data set", tuple("0123456789"), checksums, originals, sources)


def tar_of(files):
    """Return a gzipped tar archive of files, given by name and content or as `TarInfo` objects."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@dataclass
class Server:
    """An HTTP server on this machine; `plan` says what it does to each of the next requests for a file."""

    plan: dict[str, list[Callable]] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    ranges: bool = True
    released: threading.Event = field(default_factory=threading.Event)
    stalling: threading.Event = field(default_factory=threading.Event)

    def __enter__(self):
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                owner.answer(self)

            def log_message(self, *_):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._http.server_port}/"
        return self

    def __exit__(self, *_):
        self.released.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, handler):
        name = handler.path.lstrip("/")
        start = handler.headers.get("Range")
        self.requests.append((name, start))
        actions = self.plan.get(name)
        action = actions.pop(0) if actions else serve
        action(self, handler, FILES[name], int(start[len("bytes=") : -1]) if start and self.ranges else 0)

    def asked(self, name):
        return [start for asked, start in self.requests if asked == name]


def serve(server, handler, content, start, send=None):
    """Send a file from `start` on, as it should be."""
    if start > len(content):
        handler.send_error(416)
        return
    handler.send_response(206 if start else 200)
    handler.send_header("Content-Length", str(len(content) - start))
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    handler.end_headers()
    (send or handler.wfile.write)(content[start:])


def truncate(count):
    """Send `count` bytes and end the connection, though more were announced."""

    def action(server, handler, content, start):
        serve(server, handler, content, start, lambda rest: handler.wfile.write(rest[:count]))
        handler.close_connection = True

    return action


def stall(count):
    """Send `count` bytes, then nothing until the server is released."""

    def action(server, handler, content, start):
        def send(rest):
            handler.wfile.write(rest[:count])
            handler.wfile.flush()
            server.stalling.set()
            server.released.wait(30)

        serve(server, handler, content, start, send)
        handler.close_connection = True

    return action


def hold(server, handler, content, start):
    """Send nothing until the server is released, then the file."""
    server.stalling.set()
    server.released.wait(30)
    serve(server, handler, content, start)


def corrupt(server, handler, content, start):
    """Send as many bytes as there should be, but some are wrong."""
    serve(server, handler, content, start, lambda rest: handler.wfile.write(bytes(len(rest))))


def lengthen(server, handler, content, start):
    """Send more than there should be."""
    serve(server, handler, content + b"more", start)


def misplace(server, handler, content, start):
    """Send another part than was asked for, and say so."""
    serve(server, handler, content, max(start - 10, 0))


def answer(status):
    """Answer with a status and nothing else."""
    return lambda server, handler, content, start: handler.send_error(status)
