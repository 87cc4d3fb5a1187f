"""Telling one model from another without reading all of it."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from distillspec.errors import UserError, first_line
from distillspec.models.places import find_place

BLOCKS, BLOCK = 1024, 4096
"""Blocks hashed per file of weights, and bytes per block: 4 MiB of any file."""
_BY_THE_WAY = ("transformers_version", "_name_or_path")
"""Keys of a config that say who wrote it and where, not what the model is."""


def files_digest(path_or_name: str | Path) -> str:
    """Return a SHA-256 of a model's config, and of names, sizes and samples of its weights.

    Of each file of weights, 1,024 blocks of 4 KiB at even distances are hashed, the first (which
    has the names and shapes) and the last among them: milliseconds for any model. Training moves
    nearly every weight and cannot stay unseen; an edit by hand between two blocks can. A copy in
    another folder has the same fingerprint; the same weights split into other files have not.

    Args:
        path_or_name: A local folder, a GGUF file, or a name on the hub that is on this machine.

    Raises:
        UserError: if there is no such model here, its config is damaged, or it has no weights.
    """
    place = find_place(path_or_name)
    folder = Path(place.source)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(place.source, local_files_only=True))
        except (LocalEntryNotFoundError, OSError, ValueError) as error:
            raise UserError(
                f"{place.name} is neither a folder nor a model of the hub that is on this "
                "machine, so its weights cannot be compared; give its folder"
            ) from error
    if place.gguf is not None:
        files, total = [folder / place.gguf], sha256()
    else:
        files, total = _weights(folder), sha256(_config(folder))
    if not files:
        raise UserError(f"{place.name} has no weights: neither .safetensors nor .bin files")
    for file in files:
        total.update(_sample(file))
    return total.hexdigest()


def _weights(folder: Path) -> list[Path]:
    """List the files of weights; safetensors, if there are any, are what is loaded."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def _config(folder: Path) -> bytes:
    file = folder / "config.json"
    try:
        config = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{file}: damaged, or not there: {first_line(error)}") from error
    return json.dumps(
        {key: value for key, value in config.items() if key not in _BY_THE_WAY}, sort_keys=True
    ).encode()


def _sample(file: Path) -> bytes:
    size = file.stat().st_size
    found = sha256(f"{file.name}:{size}".encode())
    last = max(0, size - BLOCK)
    with file.open("rb") as content:
        for start in dict.fromkeys(last * i // (BLOCKS - 1) for i in range(BLOCKS)):
            content.seek(start)
            found.update(content.read(BLOCK))
    return found.digest()
