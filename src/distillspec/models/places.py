"""Where a model is: a folder, a GGUF file, or a name on the hub; and what reading it may say."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig

from distillspec.errors import UserError, first_line
from distillspec.models.quiet import quiet

_UNREADABLE = (
    OSError,
    ValueError,
    ImportError,
    LookupError,
    AttributeError,
    RuntimeError,
    SafetensorError,
    UnpicklingError,
    struct.error,
)
"""What transformers raises for files that are missing, damaged or of no known model."""


@dataclass(frozen=True)
class Place:
    """Where a model is, in the terms of transformers."""

    name: str
    """What the user typed, for messages."""
    source: str
    """A folder or a hub name."""
    gguf: str | None
    """A GGUF file in the folder."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What `from_pretrained` needs beside the source.

        Without a plain no, transformers asks on the terminal whether to run a folder's own code,
        and takes a y from whatever stands in stdin.
        """
        gguf = {} if self.gguf is None else {"gguf_file": self.gguf}
        return {"trust_remote_code": False, **gguf}


def find_place(path_or_name: str | Path) -> Place:
    """Tell a folder, a GGUF file and a hub name apart.

    Raises:
        UserError: it is none of them, or a folder or file that holds no model.
    """
    name = str(path_or_name)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            inside = path / "draft"  # where sft and distill write it
            meant = f"; did you mean {inside}?" if (inside / "config.json").exists() else ""
            raise UserError(
                f"{name} is not a model: expected a folder with config.json, weights and "
                f"tokenizer, as save_pretrained writes it{meant}"
            )
        _check_shards(path)
        return Place(name, str(path), None)
    if path.is_file() and path.suffix == ".gguf":
        lacking = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
        if lacking:
            raise UserError(
                f"reading {name} needs the package {' and '.join(lacking)}: "
                "pip install 'distillspec[gguf]'"
            )
        return Place(name, str(path.parent), path.name)
    if path.is_file():
        raise UserError(
            f"{name} is a file but not a GGUF file: give a model folder or a .gguf file"
        )
    local = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if local or path.suffix == ".gguf":
        raise UserError(f"{name} does not exist: give a model folder, a .gguf file or a hub name")
    return Place(name, name, None)


def _check_shards(folder: Path) -> None:
    """Refuse an index of weights that leads out of its folder.

    Raises:
        UserError: naming the entry.
    """
    for file in folder.glob("*.index.json"):
        try:
            shards = set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}: damaged: {type(error).__name__}: {error}") from error
        for shard in shards:
            if Path(str(shard)).name != shard:
                raise UserError(f"{file}: {shard!r} lies outside of the folder; it is not loaded")


def read_config(place: Place) -> PreTrainedConfig:
    """Read what a model says of itself.

    Raises:
        UserError: it cannot be read.
    """
    with explained(place, "config"):
        _ask_once(place)
        config: PreTrainedConfig = AutoConfig.from_pretrained(place.source, **place.arguments)
    return config


def _ask_once(place: Place) -> None:
    """Ask the hub a single time for a model that is not on this machine yet.

    transformers asks again and again, for 23 seconds where there is no network, and most names that
    are not here are misspelt folders.

    Raises:
        OSError: the hub did not answer.
    """
    if Path(place.source).is_dir() or try_to_load_from_cache(place.source, "config.json"):
        return
    try:
        get_hf_file_metadata(hf_hub_url(place.source, "config.json"))
    except HfHubHTTPError:
        return  # it did, and transformers tells what it says
    except Exception as error:  # of the HTTP client, which differs between versions of the hub's
        raise OSError(first_line(error)) from error


@contextmanager
def explained(place: Place, what: str) -> Iterator[None]:
    """Silence transformers' chatter and turn its errors into one line.

    Args:
        place: The model that is read.
        what: Which part of it, such as "config".

    Raises:
        UserError: instead of what transformers raises for a model that it cannot read.
    """
    try:
        with quiet():
            yield
    except _UNREADABLE as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"{place.name} brings code of its own, and none of a model's is run here: read the "
                "code, load the model in Python, and give it to distillspec.models.wrap"
            ) from error
        away = (
            "" if Path(place.source).exists() else "no such folder is here, and the hub gave none: "
        )
        raise UserError(
            f"cannot read the {what} of {place.name}: {away}{first_line(error)}"
        ) from error
