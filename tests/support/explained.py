"""The metrics that the pages of the algorithms explain."""

from __future__ import annotations

import re
from collections.abc import Collection

from support.guides import ROOT

PAGES = ROOT / "docs" / "algorithms"
ENDINGS = {"NAME": r"\w+", "QUANTILE": "(?:min|q25|median|q75|max)"}  # what capital letters in a name stand for


def unexplained(metrics: Collection[str], algorithm: str) -> list[str]:
    """Return those metrics of a run that neither the page of its algorithm nor the page of all algorithms names."""
    patterns = [
        re.sub("|".join(ENDINGS), lambda found: ENDINGS[found[0]], name)
        for page in ("index", algorithm)
        for name in _named((PAGES / f"{page}.md").read_text("utf-8"))
    ]
    return sorted(name for name in metrics if not any(re.fullmatch(pattern, name) for pattern in patterns))


def _named(page: str) -> set[str]:
    """Return the names in the first column of all tables of metrics."""
    tables = [part.partition("\n\n")[0] for part in page.split("| metric | meaning |")[1:]]
    return {
        name for table in tables for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split(" | ")[0])
    }
