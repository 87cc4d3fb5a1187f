"""Say what pip-audit found in a file of pinned versions: `make audit` calls it.

    python tests/dependency_audit.py FOUND.json EXIT_CODE

Exit code 1 where a package has a known vulnerability. Where the index has no such data, or cannot
be reached, that is said, and the exit code is 0: nothing was learned.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def judged(text: str | None, code: int) -> tuple[str, int]:
    """Return what to say and the exit code, of pip-audit's JSON (None: it wrote none)."""
    if text is None:
        return f"not audited: pip-audit ended with {code} and wrote nothing (no index?)", 0
    packages = json.loads(text)["dependencies"]
    known = [one for one in packages if "skip_reason" not in one]
    bad = [one for one in known if one["vulns"]]
    lines = [
        f"{one['name']} {one['version']}: {', '.join(vuln['id'] for vuln in one['vulns'])}"
        for one in bad
    ]
    if not known:
        return f"not audited: the index has no vulnerability data on {len(packages)} packages", 0
    skipped = len(packages) - len(known)
    lines.append(
        f"audited {len(known)} packages, {len(bad)} with known vulnerabilities; {skipped} unknown "
        "to the index"
    )
    return "\n".join(lines), 1 if bad else 0


if __name__ == "__main__":
    file = Path(sys.argv[1])
    said, code = judged(file.read_text("utf-8") if file.exists() else None, int(sys.argv[2]))
    sys.stdout.write(f"{said}\n")
    sys.exit(code)
