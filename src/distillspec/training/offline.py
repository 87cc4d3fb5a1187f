"""What a target says of completions, kept on disk: k log-probabilities and a tail a position.

    DIR/cache.json                 what the numbers belong to, and in which form they are
    DIR/shard-000000.safetensors   any number of examples; written whole or not at all

A position takes k · (2 or 4 bytes of id + 2 or 4 of log-probability) + 4: 260 bytes for k = 64 in
float16 and V ≤ 65,536. Shards are mapped into memory, so that a step reads its own rows alone. An
example is found by a hash of its ids, so the order, a part and the batches of a file are free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from distillspec.errors import UserError, changes, differences, first_line
from distillspec.files import write_whole
from distillspec.math.partial import Known, known_of
from distillspec.models.protocol import Batch, LanguageModel

RECORD = "cache.json"
_FORMAT = "distillspec target cache 1"
SERVED = "served:"
"""How the `weights` of a target begin that a server had: its name there follows."""
ROWS = 256
"""Positions whose [V] logits are in memory at once."""
_DIGEST = 16  # bytes of the hash of an example

Stored: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""What log-probabilities are stored in."""
_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Origin:
    """What a cache's numbers belong to; of another target, tokenizer or sampler they are stale."""

    target: str
    """What the target was called; not compared, for a model may be moved."""
    weights: str
    """The target's `models.files_digest`, or `SERVED` and its name where a server had it."""
    vocabulary: str
    """The digest of the target's vocabulary."""
    size: int
    """V, its ids."""
    k: int
    """Log-probabilities a position."""
    stored: Stored
    """Their dtype."""
    sampling: Mapping[str, Any]
    """The settings that the completions were sampled at. The log-probabilities are always those
    of temperature 1 without truncation, which is what training compares."""

    @property
    def served(self) -> bool:
        """Whether a server had the target, whose weights no file here can be compared with."""
        return self.weights.startswith(SERVED)

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of all that is compared."""
        values = {name: value for name, value in asdict(self).items() if name != "target"}
        return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @property
    def settings(self) -> dict[str, object]:
        """All that is compared, by name."""
        values = asdict(self)
        del values["target"]
        return {**values.pop("sampling"), **values}

    def differences(self, wanted: Mapping[str, object]) -> list[str]:
        """Say of each value that is not as wanted what was recorded and what is wanted."""
        return differences(self.settings, wanted)


@dataclass(frozen=True)
class _Place:
    """Where an example's positions are."""

    shard: int
    start: int
    end: int


class OfflineTarget:
    """A cache, open for reading and for more examples."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        """Use `open_cache` or `make_cache`."""
        self.folder = folder
        self.origin = origin
        self._shards: list[Any] = []
        self._places: dict[bytes, _Place] = {}
        for path in sorted(folder.glob("shard-*.safetensors")):
            self._map(path)

    def __len__(self) -> int:
        """Return how many examples it holds."""
        return len(self._places)

    @property
    def positions(self) -> int:
        """How many positions it holds."""
        return sum(place.end - place.start for place in self._places.values())

    @property
    def bytes_on_disk(self) -> int:
        """What its shards take."""
        return sum(path.stat().st_size for path in self.folder.glob("shard-*.safetensors"))

    def holds(self, prompt: Tensor, completion: Tensor) -> bool:
        """Tell whether an example is there."""
        return _digest(prompt, completion) in self._places

    def add(
        self, prompts: Sequence[Tensor], completions: Sequence[Tensor], known: Sequence[Known]
    ) -> None:
        """Write examples that are not there yet as one shard, whole or not at all.

        Args:
            prompts: 1-D int64 ids each.
            completions: 1-D int64 ids each.
            known: [length, k] each.

        Raises:
            UserError: the disk is full, or the folder cannot be written; what was there stays.
            ValueError: an example and what is known of it differ in length, or not in k.
        """
        new: dict[bytes, Known] = {}
        for prompt, completion, one in zip(prompts, completions, known, strict=True):
            if one.ids.shape != (len(completion), self.origin.k):
                raise ValueError(
                    f"{len(completion)} tokens with k = {self.origin.k} do not go with what is "
                    f"known of {list(one.ids.shape)}"
                )
            digest = _digest(prompt, completion)
            if digest not in self._places:
                new[digest] = one
        if not new:
            return
        parts = list(new.values())
        stored = _DTYPES[self.origin.stored]
        lengths = torch.tensor([len(one.tail) for one in parts])
        tensors = {
            "digests": torch.frombuffer(bytearray(b"".join(new)), dtype=torch.uint8),
            "ends": lengths.cumsum(0),
            "ids": torch.cat([one.ids for one in parts]).to(_id_dtype(self.origin.size)),
            "logprobs": torch.cat([one.logprobs for one in parts]).to(stored),
            "tail": torch.cat([one.tail for one in parts]).float(),
        }
        path = self.folder / f"shard-{len(self._shards):06d}.safetensors"
        if path.exists():
            raise UserError(f"{path} was written by another process; give each its own cache")
        try:
            write_whole(path, save({name: one.contiguous().cpu() for name, one in tensors.items()}))
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from error
        self._map(path)

    def known(self, batch: Batch) -> Known:
        """Return [N, k] of a batch, in the order of `LanguageModel.hidden`.

        Raises:
            UserError: an example is not there.
        """
        parts = [
            self._read(self._place(row, prompt, completion))
            for row, (prompt, completion) in enumerate(
                zip(batch.prompts, batch.completions, strict=True)
            )
        ]
        return Known(
            torch.cat([ids for ids, _, _ in parts]).to(torch.int64),
            torch.cat([logprobs for _, logprobs, _ in parts]).float(),
            torch.cat([tail for _, _, tail in parts]),
        )

    def _place(self, row: int, prompt: Tensor, completion: Tensor) -> _Place:
        place = self._places.get(_digest(prompt, completion))
        if place is None:
            raise UserError(
                f"{self.folder} does not hold example {row} of {len(completion)} tokens: it was "
                "made from other prompts or completions; make one of these (generate --cache)"
            )
        return place

    def _read(self, place: _Place) -> tuple[Tensor, Tensor, Tensor]:
        shard, rows = self._shards[place.shard], slice(place.start, place.end)
        ids, logprobs, tail = (shard.get_slice(name)[rows] for name in ("ids", "logprobs", "tail"))
        return ids, logprobs, tail

    def _map(self, path: Path) -> None:
        """Open a shard and note where its examples are."""
        with _explained(path):
            shard: Any = safe_open(str(path), framework="pt")  # safetensors has no types
            digests = bytes(shard.get_tensor("digests").numpy())
            ends: list[int] = shard.get_tensor("ends").tolist()
            shape = shard.get_slice("ids").get_shape()
        if list(shape) != [ends[-1], self.origin.k] or len(digests) != _DIGEST * len(ends):
            raise UserError(f"{path}: damaged: {shape} ids for {ends[-1]} positions")
        for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            digest = digests[i * _DIGEST : (i + 1) * _DIGEST]
            self._places[digest] = _Place(len(self._shards), start, end)
        self._shards.append(shard)


def make_cache(folder: Path, origin: Origin) -> OfflineTarget:
    """Make a cache, or go on with one that belongs to the same target, tokenizer and sampler.

    Raises:
        UserError: the folder holds another cache (naming what differs) or other things, or
            cannot be written.
    """
    try:
        if (folder / RECORD).is_file():
            there = recorded(folder)
            return _opened(folder, there, changes(there.settings, origin.settings))
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"{folder}: holds no {RECORD} but other things; give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": _FORMAT, **asdict(origin)}, indent=2)
        write_whole(folder / RECORD, f"{text}\n".encode())
    except OSError as error:
        raise UserError(f"{folder}: cannot hold a cache: {error.strerror}") from error
    return OfflineTarget(folder, origin)


def open_cache(folder: Path, wanted: Mapping[str, object] | None = None) -> OfflineTarget:
    """Open a cache.

    Args:
        folder: Where `make_cache` put it.
        wanted: What must be as recorded: fields of `Origin`, or of its sampling; None for anything.

    Raises:
        UserError: there is none, it is damaged, or it is stale: the message names what differs.
    """
    origin = recorded(folder)
    return _opened(folder, origin, origin.differences(wanted or {}))


def _opened(folder: Path, origin: Origin, stale: Sequence[str]) -> OfflineTarget:
    """Open a cache, unless it is stale."""
    if stale:
        raise UserError(
            f"{folder} is a cache of {origin.target} that does not fit: {'; '.join(stale)}; make "
            "a new one, or give what it was made with"
        )
    return OfflineTarget(folder, origin)


def recorded(folder: Path) -> Origin:
    """Read what a cache's numbers belong to.

    Raises:
        UserError: there is no cache, or it is damaged.
    """
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is no cache of a target: {RECORD}: {error}") from error
    names = [field.name for field in fields(Origin)]
    if (
        not isinstance(record, dict)
        or record.get("format") != _FORMAT
        or not set(names) <= {*record}
    ):
        raise UserError(f"{path}: not written by this version: expected {_FORMAT!r}")
    return Origin(**{name: record[name] for name in names})


@torch.no_grad()
def describe(target: LanguageModel, states: Tensor, k: int) -> Known:
    """Return what a cache keeps of [L, H] states of a target: [L, k] of it."""
    parts = [known_of(target.head(part), k) for part in torch.split(states, ROWS)]
    return Known(
        torch.cat([part.ids for part in parts]).cpu(),
        torch.cat([part.logprobs for part in parts]).cpu(),
        torch.cat([part.tail for part in parts]).cpu(),
    )


def _id_dtype(size: int) -> torch.dtype:
    return torch.uint16 if size <= 1 << 16 else torch.int32


def _digest(prompt: Tensor, completion: Tensor) -> bytes:
    """Hash an example's ids; the length of its prompt keeps the border between the two."""
    ids = torch.cat([prompt.new_tensor([len(prompt)]), prompt, completion]).cpu()
    return sha256(ids.numpy().astype("<i8").tobytes()).digest()[:_DIGEST]


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise UserError(f"{path}: damaged, or no shard of a cache: {first_line(error)}") from error
