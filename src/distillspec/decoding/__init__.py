"""Speculative and autoregressive decoding by one engine, counted block by block."""

from distillspec.decoding.blocks import Block, Counts, Output, Role, collect
from distillspec.decoding.speculative import complete, speculate

__all__ = ["Block", "Counts", "Output", "Role", "collect", "complete", "speculate"]
