"""The settings of the verbs that make up a study. Imports nothing heavy, for the help's sake."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from distillspec.commands.settings import DType, LosslessRule
from distillspec.commands.task_settings import OnTask

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


@dataclass(frozen=True, kw_only=True)
class Garden(OnTask):
    """Compare models and pairs of a family on a task: quality, latency, the front, and a pick."""

    ways: tuple[str, ...]
    """Ways to answer, each NAME=MODEL or NAME=MODEL+DRAFT (a MODEL alone is its name); the first
    is what speed-ups are over."""
    out: Path
    """Run directory: the result, and every output with its counts and quality."""
    max_latency: float | None = None
    """Pick the best way within this many seconds a prompt."""
    min_quality: float | None = None
    """Pick the fastest way with at least this many points of the task's main figure."""
    gamma: int = 5
    """Drafted tokens per block."""
    temperature: float = 0.0
    """The sampling temperature of all models; 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    limit: int = 32
    """Use at most this many random rows; every way answers each of them on the clock."""
    repetitions: int = 1
    """Timed runs of every way per row, of which the median counts."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""


@dataclass(frozen=True)
class Bounds:
    """Hold a draft's acceptance against what theory says it is at least, at temperature 1."""

    target: str
    """Folder, hub name or GGUF file of the target."""
    draft: tuple[str, ...]
    """Those of the drafts, which must be able to write every id (no trimmed head)."""
    prompts: str
    """Prompt file, task, or TASK=FILE; use prompts that the drafts were not trained on."""
    out: Path
    """Run directory."""
    max_new_tokens: int = 64
    """T: length limit of an output, in tokens."""
    limit: int = 32
    """Use at most this many prompts."""
    batch_size: int = 16
    """Prompts decoded or scored at once."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of the outputs."""


@dataclass(frozen=True)
class Perplexity:
    """Say how well models predict the targets of a file, at temperature 1."""

    models: tuple[str, ...]
    """Folders, hub names or GGUF files."""
    prompts: str
    """Prompt file, task, or TASK=FILE, whose rows have targets; use rows that the models were not
    trained on."""
    out: Path
    """Run directory."""
    limit: int = 200
    """Use at most this many rows."""
    batch_size: int = 16
    """Texts scored at once."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Of the random rows of a task."""


@dataclass(frozen=True)
class Tune:
    """Search for a recipe: successive halving on held-out τ after equal seconds of training.

    Every candidate trains for the same seconds, the better half for twice as long, and so on. The
    winner is held against a named recipe on held-out prompts that chose nothing.
    """

    target: str
    """Folder, hub name or GGUF file of the target."""
    draft: str
    """Folder or hub name of the draft to begin with."""
    prompts: str
    """Prompt file, task, or TASK=FILE to train on."""
    held_out: str
    """Prompt file, task, or TASK=FILE, none of it in --prompts: every second prompt chooses, the
    others judge the winner."""
    out: Path
    """Run directory: the result, every evaluation, and winner.yaml for `distill --config`."""
    minutes: float
    """Minutes of training in all; answers and evaluations are not counted."""
    divergences: tuple[str, ...] = ("forward_kl", "total_variation", "acceptance")
    """Divergences to try, as --divergence of distill has them."""
    mixtures: tuple[str, ...] = ("fixed", "draft", "fixed+draft")
    """Data to try: fixed, draft (on-policy), target, or equal shares of some, as in fixed+draft."""
    learning_rates: tuple[float, ...] = (3e-4, 1e-3)
    """Learning rates to try."""
    extras: tuple[str, ...] = ("none",)
    """Other flags of distill to try, each NAME=VALUE or several joined by +, such as
    none,clip=1,batch_size=16+clip=1: batch_size, clip, dtype, freeze, max_new_tokens, optimizer,
    recipe or target_gamma."""
    against: str = "imitkd"
    """The recipe of distill that the winner is held against; it trains to the end in any case."""
    optimizer: Literal["adafactor", "adamw"] = "adamw"
    """Optimizer of all candidates, that of --against too."""
    batch_size: int = 32
    """Sequences per update, unless an extra says otherwise."""
    max_new_tokens: int = 64
    """Length limit of sampled completions and of the held-out answers, in tokens."""
    limit: int | None = None
    """Use at most this many rows of --prompts; leave out for all."""
    gamma: int = 3
    """Drafted tokens per block where the pair will be served, for τ."""
    rule: LosslessRule = "ratio"
    """How drafted tokens are judged where it will be served."""
    temperature: float = 1.0
    """The target's temperature where it will be served."""
    top_k: int | None = None
    """Likewise: keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Likewise: keep the most likely tokens that make up this mass."""
    draft_temperature: float | None = None
    """Likewise, the draft's temperature; leave out for the target's."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of data order, rollouts and answers."""


@dataclass(frozen=True)
class Study:
    """Run a study: a file of steps and grids whose finished cells are kept (docs/study.md).

    `run` makes what is missing, goes on where it was interrupted, and reports cells that failed;
    `status` says what is done and the time left; `cost` foresees the memory and the arithmetic of
    its training; `report` draws the findings.
    """

    action: Literal["run", "status", "cost", "report"] = field(metadata=_POSITIONAL)
    """What to do."""
    file: Path = field(metadata=_POSITIONAL)
    """The study file."""
    data: Path = Path("data")
    """Folder that the file's data lie in."""
    out: Path | None = None
    """Folder of the study's cells and results; leave out for runs/NAME of the file."""
    steps: tuple[str, ...] = ()
    """Run these steps only, and what they need; leave out for all."""
