"""The demo on its real target, shortened. Run it with: make test PYTEST="-m demo -n 0"."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from distillspec import cli
from distillspec.commands.demo import PACKAGE
from distillspec.models import load

pytestmark = [
    pytest.mark.demo,
    pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed"),
]


def test_the_whole_path_in_two_minutes(capsys, tmp_path):
    out = tmp_path / "demo"
    assert cli.main(["demo", "--minutes", "2", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    for stage in ("before", "control", "after"):
        assert [one["temperature"] for one in found[stage]] == [1.0, 0.0]
        for one in found[stage]:
            (ran,) = [row for row in one["gammas"] if "tau_counted" in row]
            assert one["alpha"]["low"] <= one["alpha"]["value"] <= one["alpha"]["high"]
            if one["temperature"] == 0:
                assert ran["forecast_exact"]
            else:
                assert abs(ran["forecast_z"]) <= 4
    assert (out / "report" / "index.html").is_file()
    assert load(out / "draft").kept is not None
