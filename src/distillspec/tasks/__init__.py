"""Prompts: files, tasks, their split into training and held-out rows, and how answers are judged.

`metrics` is imported apart: it loads what scores.
"""

from distillspec.tasks.load import (
    Reading,
    load_task,
    read_prompts,
    read_valid_prompts,
    task_named,
    task_names,
)
from distillspec.tasks.prompts import shortened, with_shots
from distillspec.tasks.rows import EngineCounts, Row, Split, overlap, split
from distillspec.tasks.task import Task

__all__ = [
    "EngineCounts",
    "Reading",
    "Row",
    "Split",
    "Task",
    "load_task",
    "overlap",
    "read_prompts",
    "read_valid_prompts",
    "shortened",
    "split",
    "task_named",
    "task_names",
    "with_shots",
]
