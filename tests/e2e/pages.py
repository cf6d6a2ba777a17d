"""Page dumps and their comparison. Dumps are made by reading the engine's own tensors;
nothing here uses the client."""

import hashlib
import os
import pathlib


def write_page(directory, key, content):
    """One file per key and content; the same page dumped twice is one file."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{key.hex()}.{hashlib.sha256(content).hexdigest()[:16]}"
    if not path.exists():
        part = directory / f".{path.name}.{os.getpid()}"
        part.write_bytes(content)
        part.rename(path)


def read_pages(directory):
    """key (hex) -> contents that were dumped under it."""
    pages = {}
    for path in pathlib.Path(directory).glob("[0-9a-f]*.*"):
        pages.setdefault(path.name.split(".")[0], []).append(path.read_bytes())
    return pages


def differing_bytes(one, other):
    if one == other:
        return 0
    return abs(len(one) - len(other)) + sum(a != b for a, b in zip(one, other, strict=False))


def compare(published, loaded):
    """(pages, bytes, wrong bytes) of the loaded pages against what was published under
    the same key, by any engine. A page that nobody published is wrong as a whole."""
    sources, count, total, wrong = {}, 0, 0, 0
    for directory in published:
        for key, contents in read_pages(directory).items():
            sources.setdefault(key, []).extend(contents)
    for key, contents in read_pages(loaded).items():
        for content in contents:
            count += 1
            total += len(content)
            known = sources.get(key)
            wrong += min(differing_bytes(content, k) for k in known) if known else len(content)
    return count, total, wrong
