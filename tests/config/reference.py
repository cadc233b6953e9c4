"""Writes the key tables of docs/config.md from the config's models.

python tests/config/reference.py     rewrites the part of docs/config.md below its marker
test_reference.py compares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitscale.config.messages import field_of, section_of, type_text
from vitscale.config.run import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "config.md"
MARKER = "<!-- below: written by tests/config/reference.py -->\n"


def reference() -> str:
    """The tables, one per section."""
    parts = []
    for name, field in RunConfig.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            parts.append(f"## {name}\n\n{field.description}.\n")
            continue
        rows = [_row(name, key) for key in section.model_fields]
        title = f"## {name}\n\n{(section.__doc__ or '').strip()}\n\n"
        parts.append(f"{title}| key | takes | default | what it is |\n|---|---|---|---|\n{''.join(rows)}")
    return "\n".join(parts)


def _row(section: str, key: str) -> str:
    field = field_of([section, key], RunConfig)
    assert field.description, f"{section}.{key} needs a description"
    takes = "keys and values" if field.default == {} else type_text(field)
    return f"| `{section}.{key}` | {takes} | {_default(field.default)} | {field.description} |\n"


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


if __name__ == "__main__":
    prose, marker, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    assert marker, f"{PAGE} has no marker"
    PAGE.write_text(f"{prose}{MARKER}\n{reference()}", encoding="utf-8")
