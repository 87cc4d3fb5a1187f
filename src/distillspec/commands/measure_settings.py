"""The settings of `measure`. Imports nothing heavy: `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distillspec.commands.settings import DType, LosslessRule


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
    compiled: bool = False
    """Decode in passes of fixed shapes, compiled (torch.compile; on a GPU recorded as CUDA graphs).
    It begins with minutes of compiling. Decoder-only models without sliding windows."""
    seed: int = 0
    """Seed of the sampling."""
    out: Path | None = None
    """Run directory to store the result in, for `report`."""


_UNTIMED = {"clock_gamma": (), "clock_prompts": (0,), "repetitions": (), "batch_sizes": ((1,),)}
"""What means nothing without a clock, but for values that say just that."""


def timed(settings: Measure) -> list[str]:
    """Return those of the settings that need a clock and are not what they are by default."""
    default = Measure()
    return [
        name
        for name, harmless in _UNTIMED.items()
        if getattr(settings, name) not in (getattr(default, name), *harmless)
    ]
