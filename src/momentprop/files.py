"""Files that survive a crash: written atomically, and tensors in safetensors files with a JSON header and a checksum.

The header holds the format, any JSON-like `state`, and a SHA-256 of everything, which is verified when the file is
read. Nothing is ever unpickled.
"""

import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import reprlib
import tempfile
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from momentprop.errors import UserError

__all__ = ["FileError"]

FORMAT = 1
"""The version of the format."""

_KEY = "momentprop"


class FileError(UserError):
    """A file cannot be used; the message says why."""


class ContentError(UserError):
    """A file is undamaged, but its content makes no sense; the message says why."""


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers find the old content or the new, even after a crash."""
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
    """Remove the temporary files that a killed process left behind while writing files of these names."""
    for name in names:
        for path in folder.glob(f".{name}.????????"):  # as `tempfile` names them
            path.unlink(missing_ok=True)


def write_tensors(path: Path, state: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: str) -> None:
    """Write tensors with a state that JSON can hold; `kind` says what the file is, for the messages."""
    save = require_safetensors(kind).torch.save
    stored = _apart({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    text = json.dumps(state)
    header = {"format": FORMAT, "sha256": digest(stored, text)}
    write_file(path, save(stored, {_KEY: json.dumps(header), "state": text}))


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that share no memory: safetensors refuses shared memory, as in tied weights."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return found


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the state and the tensors that `write_tensors` wrote, or raise a `FileError` that says what is wrong.

    `kind` is for the messages, for example "checkpoint".
    """
    package = require_safetensors(kind)
    if path.is_dir():
        raise FileError(f"`{path}` is a folder, not a {kind}")
    try:
        with package.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dictionary)
    except package.SafetensorError as error:
        raise FileError(f"`{path}` is damaged, or not a safetensors file ({error})") from error
    if _KEY not in metadata or "state" not in metadata:
        raise FileError(f"`{path}` is not a {kind} of momentprop")
    try:
        header = json.loads(metadata[_KEY])
        version, expected = header["format"], header["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"`{path}` is damaged: its header cannot be read") from error
    if version != FORMAT:
        raise FileError(
            f"`{path}` has format {version}, but this version of momentprop reads format {FORMAT}: make the file "
            "again, or read it with the version that wrote it"
        )
    if digest(tensors, metadata["state"]) != expected:
        raise FileError(f"`{path}` is damaged: its SHA-256 is not the one that was written")
    try:
        state = json.loads(metadata["state"])
    except (ValueError, RecursionError) as error:
        raise FileError(f"`{path}` is not a valid {kind}: its state is not JSON") from error
    if not isinstance(state, dict):
        raise FileError(f"`{path}` is not a valid {kind}: its state is not a dictionary")
    return state, tensors


@contextlib.contextmanager
def valid(path: Path, kind: str) -> Iterator[None]:
    """Turn a `ContentError` raised inside into a `FileError` that names the file."""
    try:
        yield
    except ContentError as error:
        raise FileError(f"`{path}` is not a valid {kind}: {error}") from error


def decoded(kind: Any, content: Any, name: str) -> Any:
    """Return content that was read from JSON as a type, or raise a `ContentError` that says what is wrong.

    A type is a dataclass, a number, a string, a `Literal`, a container of types, one of them or None, or `Any`.

    >>> decoded(dict[str, tuple[float, ...]], {"levels": [1, 2.5]}, "noise")
    {'levels': (1.0, 2.5)}
    >>> decoded(dict[str, tuple[float, ...]], {"levels": [1, "2"]}, "noise")
    Traceback (most recent call last):
    momentprop.files.ContentError: noise.levels[1] must be a float, but is '2'
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (content is None and type(None) in inner):
        return content
    if origin in (typing.Union, types.UnionType):
        return decoded(next(each for each in inner if each is not type(None)), content, name)
    if origin is typing.Literal and content in inner:
        return content
    if dataclasses.is_dataclass(kind) and isinstance(content, dict):
        return _as_dataclass(kind, content, name)
    if origin is dict and isinstance(content, dict):
        return {key: decoded(inner[1], each, f"{name}.{key}") for key, each in content.items()}
    if origin in (list, tuple) and isinstance(content, list | tuple):
        every = inner if origin is tuple and ... not in inner else inner[:1] * len(content)
        if len(every) == len(content):
            each = (decoded(k, part, f"{name}[{i}]") for i, (k, part) in enumerate(zip(every, content, strict=True)))
            return origin(each)
    if kind is float and type(content) is int and abs(content) < 1e300:
        return float(content)
    if origin is None and type(content) is kind:
        return content
    if origin is typing.Literal:
        expected = f"one of {', '.join(map(repr, inner))}"
    else:
        expected = f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"
    raise ContentError(f"{name} must be {expected}, but is {reprlib.repr(content)}")


def _as_dataclass(kind: Any, content: dict[str, Any], name: str) -> Any:
    hints, fields = typing.get_type_hints(kind), [field for field in dataclasses.fields(kind) if field.init]
    for key in content:
        if key not in {field.name for field in fields}:
            raise ContentError(f"{name} has an unknown entry {reprlib.repr(key)}")
    for field in fields:
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in content:
            raise ContentError(f"{name} has no entry {field.name!r}")
    return kind(**{key: decoded(hints[key], each, f"{name}.{key}") for key, each in content.items()})


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the SHA-256 of a text and tensors on the CPU, with their names, types and shapes."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        _add(total, tensor)
    return total.hexdigest()


def sha256(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's elements, whatever its device and memory layout."""
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
