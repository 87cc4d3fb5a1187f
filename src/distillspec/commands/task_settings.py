"""The settings of the verbs that run tasks. Imports nothing heavy: `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from distillspec.commands.settings import AnyRule, DType, LosslessRule

LenientRule = Literal["linear", "squared", "exponential", "threshold", "typical"]


@dataclass(frozen=True, kw_only=True)
class OnTask:
    """What verbs on a task have in common."""

    task: str
    """Task name, or the .toml file of a task of one's own; bbh:DOMAIN for one domain."""
    data: Path | None = None
    """File of the task's rows in JSON lines; leave out for where the task itself finds them."""
    limit: int | None = None
    """Use at most this many random rows; leave out for all."""
    max_new_tokens: int | None = None
    """Length limit of an output, in tokens; leave out for the task's own."""
    seed: int = 0
    """Seed of the sampling and of the random rows."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(OnTask):
    """Evaluate a draft on a task: quality, acceptance, latency at batch 1, throughput beyond.

    Greedy lossless outputs are checked to be the target's own, token for token; where one is not,
    and rounding does not explain it, the exit code is 3.
    """

    target: str
    """Folder, hub name or GGUF file of the target."""
    draft: str
    """Folder, hub name or GGUF file of the draft."""
    out: Path
    """Run directory: the result, and every output with its counts and quality."""
    rule: AnyRule = "ratio"
    """How drafted tokens are judged; ratio, argmax (a greedy draft) and exact-match leave the
    output's law as it is, the others change it (paper, section 5.3)."""
    epsilon: float | None = None
    """ε in (0, 1] of a rule that changes the output; less accepts more."""
    gamma: int = 3
    """Drafted tokens per block."""
    temperature: float = 0.0
    """The target's sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    draft_temperature: float | None = None
    """The draft's temperature; leave out for the target's."""
    shots: int = 0
    """Examples before every prompt, drawn from training rows."""
    shots_data: Path | None = None
    """File of training rows in JSON lines; leave out for where the task itself finds them."""
    clock_prompts: int = 16
    """Run this many random prompts on the clock at batch 1 (the paper: 500); 0 for none."""
    repetitions: int = 3
    """Timed runs of a kind per such prompt, of which the median counts (the paper's)."""
    batch_size: int = 8
    """Prompts decoded at once for quality and throughput."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""


@dataclass(frozen=True, kw_only=True)
class Tradeoff(OnTask):
    """Trade quality for speed: lenient rules with every ε and draft, and the fastest to pick."""

    target: str
    """Folder, hub name or GGUF file of the target."""
    draft: tuple[str, ...]
    """Folders, hub names or GGUF files of the drafts, such as the raw and the distilled one."""
    out: Path
    """Run directory: the result, and every output with its counts and quality."""
    leniences: tuple[LenientRule, ...] = ("linear", "squared", "exponential")
    """What takes the place of p in the acceptance test: p/ε, p/ε², p^ε (the paper's)."""
    epsilons: tuple[float, ...] = (0.1, 0.3, 0.5, 0.8)
    """The ε of each, in (0, 1]; less accepts more, and 1 changes nothing."""
    gamma: int = 3
    """Drafted tokens per block."""
    temperature: float = 1.0
    """The sampling temperature of all models; 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    max_loss: float = 2.0
    """Pick the fastest setting that loses at most this much of the target's quality, in per
    cent."""
    limit: int = 32
    """Use at most this many random rows; every setting decodes each of them on the clock."""
    repetitions: int = 1
    """Timed runs of every setting per row, of which the median counts."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""


@dataclass(frozen=True)
class Transfer:
    """Measure drafts on other tasks, and beside other targets, than they were made for."""

    target: tuple[str, ...]
    """Folders, hub names or GGUF files of one or more targets with the drafts' tokens."""
    draft: tuple[str, ...]
    """Those of the drafts; every further one is held against the first."""
    tasks: tuple[str, ...]
    """Tasks, each with a file of its rows behind an equals sign unless it finds them itself, such
    as gsm8k=gsm8k.jsonl,bbh:navigate=bbh.jsonl."""
    out: Path
    """Run directory: the result, the outputs on the clock, and the counts of every prompt."""
    rule: LosslessRule = "ratio"
    """How drafted tokens are judged: ratio (the paper's), argmax (a greedy draft), or exact-match
    (accept what equals the target's own sample)."""
    gamma: tuple[int, ...] = (3, 5, 7)
    """Drafted tokens per block to forecast (the paper's); the best of each draft runs."""
    temperature: float = 1.0
    """The target's sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    draft_temperature: float | None = None
    """The drafts' temperature; leave out for the target's."""
    limit: int = 32
    """Use at most this many random rows of each task."""
    max_new_tokens: int | None = None
    """Length limit of an output, in tokens; leave out for each task's own."""
    clock_prompts: int = 4
    """Run the engine on the clock on this many of them; 0 for a forecast alone."""
    repetitions: int = 3
    """Timed runs per prompt, of which the median counts."""
    batch_size: int = 16
    """Prompts decoded or scored at once, off the clock."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of the sampling and of the random rows."""
