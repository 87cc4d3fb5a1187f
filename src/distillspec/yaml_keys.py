"""YAML files as they are written: keys with their line, values as text."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml

from distillspec.errors import UserError


class Entry(NamedTuple):
    """One key of a YAML mapping."""

    name: str
    """The key, dashes as underscores."""
    written: str
    """The key as it stands."""
    where: str
    """File, line and key, for messages."""
    node: yaml.Node
    """What it is given."""

    @property
    def nested(self) -> bool:
        """Whether it is given keys of its own."""
        return isinstance(self.node, yaml.MappingNode)

    def text(self) -> str | list[str]:
        """Return the value as it is written, one text or a list of them.

        Raises:
            UserError: it is a nested structure.
        """
        if isinstance(self.node, yaml.ScalarNode):
            return str(self.node.value)
        if isinstance(self.node, yaml.SequenceNode):
            items = [item for item in self.node.value if isinstance(item, yaml.ScalarNode)]
            if len(items) == len(self.node.value):
                return [str(item.value) for item in items]
        raise UserError(
            f"{self.where}: expected one value or a list of values, not a nested structure"
        )

    def entries(self, path: Path) -> list[Entry]:
        """Return the keys below this one.

        Raises:
            UserError: it is no mapping, or a key stands in it twice.
        """
        return _entries(self.node, path, self.where)


def read_yaml(path: Path, prefix: str = "") -> list[Entry]:
    """Read the keys of a YAML file.

    The document is composed, not constructed: a scalar is the text that was written, so YAML's
    own guesses (`1e-4` a string, `no` false, `0123` octal) never happen.

    Args:
        path: the file.
        prefix: what stands before its name where it cannot be read, such as "--config ".

    Raises:
        UserError: the file cannot be read, is no YAML mapping, or has a key twice.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise UserError(f"{prefix}{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "nested too deeply"
        raise UserError(f"{prefix}{path}: not YAML in UTF-8: {reason}") from error
    return [] if root is None else _entries(root, path, f"{prefix}{path}")


def _entries(node: yaml.Node, path: Path, where: str) -> list[Entry]:
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{where}: expected lines of the form 'key: value'")
    found: dict[str, Entry] = {}
    for key, value in node.value:
        written = str(key.value) if isinstance(key, yaml.ScalarNode) else "(not a name)"
        entry = Entry(
            written.replace("-", "_"),
            written,
            f"{path}:{key.start_mark.line + 1}: {written}",
            value,
        )
        if entry.name in found:
            raise UserError(f"{entry.where}: given twice; keep one of the two")
        found[entry.name] = entry
    return list(found.values())
