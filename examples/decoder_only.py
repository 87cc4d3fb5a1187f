"""Distil a decoder-only draft: python examples/decoder_only.py [TARGET DRAFT], or tiny models."""

import sys
from itertools import islice

from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel

from distillspec.models import load_pair, wrap
from distillspec.training import Batches, Divergence, Example, Mixture, Recipe, Schedule, State
from distillspec.training.distill import distill

sizes = [GPT2Config(vocab_size=384, n_embd=96, n_layer=n, initializer_range=0.2) for n in (2, 1)]
tiny = [wrap(GPT2LMHeadModel(size), ByT5Tokenizer()) for size in sizes]
target, draft = load_pair(*sys.argv[1:]) if sys.argv[1:] else tiny
batches = Batches([Example(target.tokenizer.prompt(f"{n} + {n} =")) for n in range(64)], 8)
recipe = Recipe(Divergence("jsd", 0.5), Mixture(target=1), schedule=Schedule(), batch_size=8)
steps = distill(target, draft, batches, recipe, state=State(draft, batches, recipe, seed=0))
for step in islice(steps, 10):
    print(f"step {step.step}: loss {step.loss:.3f}, acceptance {step.expected_acceptance:.3f}")
draft.save("runs/draft")
