"""The settings of `audit`, `export` and `check-export`. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from distillspec.commands.settings import DType, LosslessRule


@dataclass(frozen=True)
class Audit:
    """Say whether any engine's outputs are the target's: with nothing but the target.

    Exit code 3 where they are not. docs/audit.md has the tests and what they can see.
    """

    target: str = field(metadata={"positional": True})
    """Folder, hub name or GGUF file of the target."""
    outputs: str = field(metadata={"positional": True})
    """JSON lines with the prompt (prompt or messages) and target_ids of every answer, such as
    generate writes; prompt_ids, blocks (tokens of each target call) and finish_reason where
    known."""
    temperature: float = 1.0
    """Temperature the engine is said to have sampled at; 0 is greedy."""
    top_k: int | None = None
    """Likewise: the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Likewise: the most likely tokens that make up this mass."""
    max_new_tokens: int | None = None
    """Length limit that the engine was given; leave out where it is not known."""
    draft: str | None = None
    """The draft that was served, to ask too whether tokens lean toward it."""
    engine_dtype: DType = "auto"
    """What the engine computed in: rounding explains more in 16 bits; auto is --dtype."""
    tolerance: float = 0.0
    """What an engine's rounding may shift each token by, in nats or as a share; 0 asks for the
    target's law to the last bit that chance leaves visible."""
    level: float = 0.05
    """Chance of a false alarm, all tests together (Holm)."""
    raw: bool = False
    """Take prompts as they stand, without the chat template."""
    limit: int | None = None
    """Use at most this many outputs."""
    batch_size: int = 16
    """Outputs scored at once."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""


@dataclass(frozen=True)
class Export:
    """Write a draft as a plain folder for the engines that serve it, and how to launch them.

    The folder loads without this package and gives the same logits, bit for bit.
    """

    draft: str = field(metadata={"positional": True})
    """Folder, hub name or GGUF file of the draft."""
    target: str
    """Folder, hub name or GGUF file of the target: its tokenizer, chat template and number of rows
    are written."""
    out: Path
    """Folder to write; it must not exist, or be empty."""
    engine: tuple[str, ...] = ()
    """Engines to write launch lines for: transformers, vllm, sglang, llama.cpp, openvino; leave
    out for all."""
    gamma: int | None = None
    """Drafted tokens per block; may be left out with --measured, whose best is taken then."""
    rule: LosslessRule = "ratio"
    """How drafted tokens are to be judged, where the engine leaves a choice."""
    dtype: DType = "auto"
    """Type of the weights; auto is the draft's own."""
    measured: Path | None = None
    """Run directory of measure, or the JSON it printed: what the model card says of acceptance. Of
    several drafts' measurement the part of this one."""
    trained: Path | None = None
    """Run directory of sft or distill: what the model card says of the data and the recipe."""


@dataclass(frozen=True)
class CheckExport:
    """Run held-out prompts through the engine that serves, and hold it against the forecast.

    Acceptance by the engine's own counters, its outputs by an audit, its speed. Exit code 3 where
    they are not what was promised, with the likely cause.
    """

    draft: str = field(metadata={"positional": True})
    """Folder that `export` wrote."""
    target: str
    """Folder, hub name or GGUF file of the target."""
    prompts: str
    """Prompt file, task, or TASK=FILE; use prompts that the draft was not trained on."""
    gamma: int | None = None
    """Drafted tokens per block, as served; leave out for the γ the folder was exported with."""
    engine: Literal["transformers", "vllm", "llama.cpp", "outputs"] = "transformers"
    """Where the pair runs: transformers in this process; a vLLM or llama.cpp server at --url that
    nobody else asks meanwhile; or anywhere else, and --outputs has what it did."""
    url: str | None = None
    """URL of the server, such as http://localhost:8000/v1."""
    url_plain: str | None = None
    """URL of the same engine's server without the draft: asked in turn, for the speed-up."""
    outputs: str | None = None
    """JSON lines of what an engine did with the draft: id, prompt, target_ids and counts of every
    prompt; prompt_ids, blocks and finish_reason where known (docs/export.md)."""
    outputs_plain: str | None = None
    """The same without the draft, for the speed-up."""
    model: str | None = None
    """What the server calls the target; leave out where it is the name in --target."""
    rule: LosslessRule = "ratio"
    """How the engine is said to judge drafted tokens (vLLM and llama.cpp draft greedily, argmax,
    unless they are told to draft probabilistically)."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    max_new_tokens: int = 64
    """Length limit of an answer, in tokens."""
    limit: int = 16
    """Use at most this many prompts."""
    engine_dtype: DType = "auto"
    """What the engine computes in, where it is a server: rounding explains more in 16 bits."""
    tolerance: float = 0.0
    """What the engine's rounding may shift each token by, in nats or as a share."""
    min_speedup: float | None = None
    """Exit with code 3 unless the engine with the draft is so many times as fast as alone."""
    timeout: float = 600.0
    """Seconds one answer of the server may take."""
    batch_size: int = 16
    """Prompts scored at once, beside the engine."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of the sampling."""
