"""Distil a T5 draft on its own outputs: python examples/t5.py [TARGET DRAFT], or on tiny models."""

import sys
from itertools import islice

from transformers import ByT5Tokenizer, T5Config, T5ForConditionalGeneration

from distillspec.models import load_pair, wrap
from distillspec.training import Batches, Divergence, Example, Mixture, Recipe, Schedule, State
from distillspec.training.distill import distill

sizes = [T5Config(vocab_size=384, d_model=64, d_ff=128, num_layers=n) for n in (2, 1)]
tiny = [wrap(T5ForConditionalGeneration(size), ByT5Tokenizer()) for size in sizes]
target, draft = load_pair(*sys.argv[1:]) if sys.argv[1:] else tiny
batches = Batches([Example(target.tokenizer.prompt(f"summarize: {n}")) for n in range(64)], 8)
recipe = Recipe(Divergence("forward_kl"), Mixture(draft=1), schedule=Schedule(), batch_size=8)
steps = distill(target, draft, batches, recipe, state=State(draft, batches, recipe, seed=0))
for step in islice(steps, 10):
    print(f"step {step.step}: loss {step.loss:.3f}, acceptance {step.expected_acceptance:.3f}")
draft.save("runs/t5-draft")
