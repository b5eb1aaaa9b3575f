"""Every cell of the grid once: what each format takes or refuses, in a file that can be continued.

    PYTHONPATH=. python tests/exporters/sweep.py --out cells.jsonl

A line is a cell; cells that the file has are not run again. `--table` prints what it holds.
"""

import argparse
import json
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grid import EXPORTED, GRID, Cell, export_first_plan

from apss_jax.exporters.formats import FORMATS

Row = dict[str, Any]


def rows_of(file: Path) -> list[Row]:
    """Returns the cells that a file holds."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def tried(cell: Cell) -> Row:
    """Returns what became of a cell, an error of ours included."""
    try:
        return {"cell": cell, "formats": export_first_plan(cell)}
    except Exception:
        return {"cell": cell, "error": traceback.format_exc(limit=-4)}


def run(file: Path) -> None:
    """Runs the cells that a file does not have, and adds a line for each."""
    done = {tuple(row["cell"]) for row in rows_of(file)}
    with file.open("a") as out:
        for cell in GRID:
            if cell not in done:
                out.write(json.dumps(tried(cell)) + "\n")
                out.flush()


def table(rows: list[Row]) -> Iterator[str]:
    """Yields how many first plans each format takes, and how many each rule refuses."""
    planned = [row["formats"] for row in rows if row.get("formats")]
    yield f"{len(rows)} cells, {len(planned)} with a plan, {len(failed(rows))} with an error"
    yield "| format | exported | refused by |"
    yield "|---|---|---|"
    for name in FORMATS:
        counts = Counter(formats[name] for formats in planned)
        taken = counts.pop(EXPORTED, 0)
        refused = ", ".join(f"`{rule}` {count}" for rule, count in sorted(counts.items()))
        yield f"| `{name}` | {taken} | {refused or '-'} |"


def failed(rows: list[Row]) -> list[Row]:
    """Returns the cells that ended in an error."""
    return [row for row in rows if "error" in row]


def main() -> int:
    """Runs what is missing and prints the table; 1 where a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    if not given.table:
        run(given.out)
    rows = rows_of(given.out)
    sys.stdout.writelines(f"{line}\n" for line in table(rows))
    sys.stderr.writelines(f"{row['cell']} {row['error']}\n" for row in failed(rows))
    return 1 if failed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
