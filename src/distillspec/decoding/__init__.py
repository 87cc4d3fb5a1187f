"""Speculative and autoregressive decoding by one engine, counted block by block."""

from distillspec.decoding.blocks import Block, Counts, Output, Role, collect
from distillspec.decoding.gammas import Constant, Gammas, Optimal, Schedule
from distillspec.decoding.speculative import complete, speculate

__all__ = [
    "Block",
    "Constant",
    "Counts",
    "Gammas",
    "Optimal",
    "Output",
    "Role",
    "Schedule",
    "collect",
    "complete",
    "speculate",
]
