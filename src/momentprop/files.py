"""Files that survive a crash: written atomically, and tensors in safetensors files with a JSON header and a checksum.

The header holds the format, any JSON-like `state`, and a SHA-256 of everything, which is verified when the file is
read. Nothing is ever unpickled.
"""

import ctypes
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from momentprop.errors import UserError

FORMAT = 1
"""The version of the format."""

_KEY = "momentprop"


class FileError(UserError):
    """A file cannot be used; the message says why."""


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically: whoever reads it finds the old content or the new one, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove the temporary files that a killed process has left behind while it wrote files of these names."""
    for name in names:
        for path in folder.glob(f".{name}.????????"):  # as `tempfile` names them
            path.unlink(missing_ok=True)


def write_tensors(path: Path, state: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: str) -> None:
    """Write tensors with a state that JSON takes; `kind` says what the file is, for the messages."""
    save = require_safetensors(kind).torch.save
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(state)
    header = {"format": FORMAT, "sha256": digest(stored, text)}
    write_file(path, save(stored, {_KEY: json.dumps(header), "state": text}))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the state and the tensors that `write_tensors` has written, or raise a `FileError` that says what is wrong.

    `kind` is for the messages, for example "checkpoint".
    """
    package = require_safetensors(kind)
    try:
        with package.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dictionary)
    except package.SafetensorError as error:
        raise FileError(f"`{path}` is damaged or no safetensors file ({error})") from error
    if _KEY not in metadata or "state" not in metadata:
        raise FileError(f"`{path}` is not a {kind} of momentprop")
    try:
        header = json.loads(metadata[_KEY])
        version, expected = header["format"], header["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"`{path}` is damaged: its header cannot be read") from error
    if version != FORMAT:
        raise FileError(f"`{path}` has format {version}, but this version of momentprop reads format {FORMAT}")
    if digest(tensors, metadata["state"]) != expected:
        raise FileError(f"`{path}` is damaged: its SHA-256 is not the one that was written")
    return json.loads(metadata["state"]), tensors


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the SHA-256 of a text and tensors on the CPU, with their names, types and shapes."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        _add(total, tensor)
    return total.hexdigest()


def sha256(tensor: Tensor) -> str:
    """Return the SHA-256 of the elements of a tensor, wherever and however they lie in memory."""
    total = hashlib.sha256()
    _add(total, tensor)
    return total.hexdigest()


def _add(total: Any, tensor: Tensor) -> None:
    """Add the bytes of a tensor to a hash without a copy, and without numpy."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.numel():
        total.update((ctypes.c_char * plain.nbytes).from_address(plain.data_ptr()))


def require_safetensors(kind: str) -> Any:
    """Return the package safetensors, or raise an `ImportError` that says what to install for this kind of file."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError(f'{kind}s need safetensors: run `pip install "momentprop[experiments]"`') from error
    return safetensors
