"""Settings are shown as a reader would write them, never as Python does."""

from __future__ import annotations

import pytest

from distillspec.report.settings_view import Setting, settings_view


def lines(settings: tuple[Setting, ...], depth: int = 0) -> list[str]:
    found = []
    for one in settings:
        found.append(f"{'  ' * depth}{one.name}: {one.value or ''}".rstrip())
        found += lines(one.inner, depth + 1)
    return found


def test_nested_settings_are_nested_lists() -> None:
    config = {
        "minutes": 15.0,
        "gamma": [1, 2, 4],
        "out": "runs/<x>\u202e",
        "skip": True,
        "recipe": {"divergence": {"name": "jsd", "beta": None}, "frozen": [], "extra": {}},
        "stages": [{"steps": 3}, {"steps": 4}],
    }
    assert lines(settings_view(config)) == [
        "minutes: 15",
        "gamma: 1, 2, 4",
        'out: runs/&lt;x&gt;<span class="code" title="RIGHT-TO-LEFT OVERRIDE">U+202E</span>',
        "skip: yes",
        "recipe:",
        "  divergence:",
        "    name: jsd",
        '    beta: <span class="soft">not given</span>',
        '  frozen: <span class="soft">none</span>',
        '  extra: <span class="soft">none</span>',
        "stages:",
        "  1:",
        "    steps: 3",
        "  2:",
        "    steps: 4",
    ]


def test_what_has_no_names_is_refused() -> None:
    with pytest.raises(TypeError, match="settings by name"):
        settings_view("x")
