"""Prompts: files, tasks, and their split into training and held-out rows."""

from distillspec.tasks.load import Reading, Task, load_task, read_prompts, read_valid_prompts
from distillspec.tasks.rows import Row, Split, overlap, split

__all__ = [
    "Reading",
    "Row",
    "Split",
    "Task",
    "load_task",
    "overlap",
    "read_prompts",
    "read_valid_prompts",
    "split",
]
