"""What `make audit` makes of pip-audit's findings."""

from __future__ import annotations

import json

from dependency_audit import judged


def found(*packages):
    return json.dumps({"dependencies": list(packages), "fixes": []})


SOUND = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "not found"}
BAD = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]}


def test_a_vulnerability_fails_and_an_index_without_data_is_told_apart():
    assert judged(found(SOUND, SKIPPED), 0) == (
        "audited 1 packages, 0 with known vulnerabilities; 1 unknown to the index",
        0,
    )
    said, code = judged(found(SOUND, BAD), 1)
    assert code == 1
    assert "c 2: PYSEC-1, PYSEC-2" in said
    assert judged(found(SKIPPED), 0)[0].startswith("not audited")
    assert judged(None, 1) == (
        "not audited: pip-audit ended with 1 and wrote nothing (no index?)",
        0,
    )
