"""The settings of the verbs that make up a study. Imports nothing heavy, for the help's sake."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_POSITIONAL = {"positional": True}


@dataclass(frozen=True)
class NewModel:
    """Make a model of given sizes with random weights, and a tokenizer trained on texts.

    `sft` then trains it from scratch.
    """

    family: Literal["gpt2", "llama", "t5"]
    """Architecture: gpt2 (the paper's GPT-like), llama, or t5 (T5 v1.1, encoder-decoder)."""
    out: Path
    """Folder to write the model to."""
    width: int
    """Size of the hidden states."""
    depth: int
    """Number of layers; of t5 in the encoder and in the decoder each."""
    heads: int
    """Number of attention heads; they divide the width."""
    ff: int | None = None
    """Size of the feed-forward layers; leave out for four times the width."""
    context: int = 512
    """Longest sequence in tokens; t5 has no limit."""
    tokenizer: str | None = None
    """Folder or hub name of a model whose tokenizer it gets; leave out to train one."""
    prompts: str | None = None
    """Prompt file, task, or TASK=FILE, on whose texts a tokenizer is trained."""
    vocabulary: int = 4096
    """Ids of a trained tokenizer (byte-level BPE)."""
    limit: int | None = None
    """Train the tokenizer on at most this many rows."""
    seed: int = 0
    """Seed of the weights."""


@dataclass(frozen=True)
class Study:
    """Run a study: a file of steps and grids whose finished cells are kept (docs/study.md).

    `run` makes what is missing, goes on where it was interrupted, and reports cells that failed;
    `status` says what is done and the time left; `report` draws the findings.
    """

    action: Literal["run", "status", "report"] = field(metadata=_POSITIONAL)
    """What to do."""
    file: Path = field(metadata=_POSITIONAL)
    """The study file."""
    data: Path = Path("data")
    """Folder that the file's data lie in."""
    out: Path | None = None
    """Folder of the study's cells and results; leave out for runs/NAME of the file."""
    steps: tuple[str, ...] = ()
    """Run these steps only, and what they need; leave out for all."""
