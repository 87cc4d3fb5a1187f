"""Settings of `trim`: flags, types, defaults and help in one place."""

from __future__ import annotations

from dataclasses import dataclass

from distillspec.commands.settings import DType


@dataclass(frozen=True)
class Trim:
    """Say what a smaller output head would cost a draft and save it, over sizes, before training.

    The ids of each size are the most frequent ones in --texts. What trimming loses is forecast on
    the target's answers to --prompts, and drafts with these heads are timed. `new-draft --keep-ids`
    then makes the draft.
    """

    target: str
    """Folder, hub name or GGUF file of the target."""
    draft: str
    """The draft, with a whole head: as new-draft makes it, or tuned already."""
    texts: str
    """Prompt file, task, or TASK=FILE whose texts are counted, such as generate writes."""
    prompts: str
    """Prompt file, task, or TASK=FILE to measure on; none of those counted."""
    sizes: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    """How many ids to keep, besides the special ones; sizes of the whole vocabulary or more are
    left out."""
    gamma: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    """Drafted tokens per block to forecast."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Keep the k most likely tokens; leave out for all."""
    top_p: float = 1.0
    """Keep the most likely tokens that make up this mass."""
    max_new_tokens: int = 64
    """Length limit of an answer, in tokens."""
    limit: int = 32
    """Use at most this many of --prompts."""
    clock_prompts: int = 2
    """Time the drafts on this many of them."""
    batch_size: int = 16
    """Prompts decoded or scored at once, off the clock."""
    dtype: DType = "auto"
    """Type of the weights; auto is the one they are stored in."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of the sampling."""
