"""Downloads that survive interruption, resume, and are verified.

A partial file is called `NAME.part`. It is renamed to `NAME` only when it is complete and has the known SHA-256, so a
file called `NAME` is always complete.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from momentprop.data.errors import SourceError
from momentprop.data.progress import progress

TIMEOUT = 15.0  # seconds without a byte
ATTEMPTS = 4  # for a connection that breaks
PAUSE = 1.0  # seconds before the second attempt; each further pause doubles

_CHUNK = 2**18
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)  # answers after which a later attempt may succeed


@dataclass(frozen=True)
class Original:
    """A file as the authors of a data set published it."""

    name: str
    size: int
    sha256: str


class _BrokenOffError(SourceError):
    """The transfer failed, but another attempt may succeed."""


def download(mirror: str, original: Original, folder: Path) -> Path:
    """Return the path of an original in a folder; download it from a mirror if it is missing."""
    path = folder / original.name
    if path.exists() and _sha256(path) == original.sha256:
        return path
    part = folder / f"{original.name}.part"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _fill(part, mirror + original.name, original)
        except _BrokenOffError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE * 2 ** (attempt - 1))
        else:
            break
    os.replace(part, path)
    return path


def _fill(part: Path, url: str, original: Original) -> None:
    """Get the missing rest of a partial file, and verify the whole."""
    start = part.stat().st_size if part.exists() else 0
    if start < original.size:
        _append(part, url, original, start)
    if _sha256(part) == original.sha256:
        return
    part.unlink()
    message = "what it sends is not the original file: the SHA-256 differs"
    # If only the end is new, the beginning may be wrong.
    raise _BrokenOffError(message) if start else SourceError(message)


def _append(part: Path, url: str, original: Original, start: int) -> None:
    """Get the bytes of a file from `start` on, or all of them if the server does not support ranges."""
    headers = {"User-Agent": "momentprop", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with _open(urllib.request.Request(url, headers=headers), part) as response:
        if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise SourceError("it answers with a different part of the file than requested")
        done = start if response.status == 206 else 0
        label = f"{original.name} ({original.size / 1e6:.3g} MB) from {url.removesuffix(original.name)}"
        with open(part, "ab" if done else "wb") as file, progress(label, original.size, done) as advance:
            while done < original.size and (chunk := _receive(response)):
                file.write(chunk)
                file.flush()  # so that a killed process keeps what it received
                done += len(chunk)
                advance(len(chunk))
    if done < original.size:
        raise _BrokenOffError(f"the connection ended after {done} of {original.size} bytes")


def _open(request: urllib.request.Request, part: Path) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the server's file is shorter than the partial file
            part.unlink()
        kind = _BrokenOffError if error.code in (*_TRY_AGAIN, 416) else SourceError
        raise kind(f"it answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise SourceError(_reason(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(_reason(error)) from error
    return response


def _receive(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(_reason(error)) from error


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no byte came for {TIMEOUT:g} seconds"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
