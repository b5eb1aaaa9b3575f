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

from grid import EXPORTED, GRID, THIRD, Cell, export_first_plan

from apss_jax.exporters.formats import FORMATS

Row = dict[str, Any]


def rows_of(file: Path) -> list[Row]:
    """Returns the cells that a file holds."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def tried(cell: Cell, stack: str | None) -> Row:
    """Returns what became of a cell, an error of ours included."""
    try:
        return {"cell": cell, "formats": export_first_plan(cell, stack)}
    except Exception:
        return {"cell": cell, "error": traceback.format_exc(limit=-4)}


def run(file: Path, cells: list[Cell], stack: str | None) -> None:
    """Runs the cells that a file does not have, and adds a line for each."""
    done = {tuple(row["cell"]) for row in rows_of(file)}
    with file.open("a") as out:
        for cell in cells:
            if cell not in done:
                out.write(json.dumps(tried(cell, stack)) + "\n")
                out.flush()


def table(rows: list[Row]) -> Iterator[str]:
    """Yields how many first plans each format takes, and how many each rule refuses."""
    planned = [row["formats"] for row in rows if row.get("formats")]
    yield f"{len(rows)} cells, {len(planned)} with a plan, {len(failed(rows))} with an error"
    yield "| format | exported | refused | by rule (a plan may break several) |"
    yield "|---|---|---|---|"
    for name in FORMATS:
        rules = Counter(rule for formats in planned for rule in formats[name].split("+"))
        taken = rules.pop(EXPORTED, 0)
        refused = ", ".join(f"`{rule}` {count}" for rule, count in sorted(rules.items()))
        yield f"| `{name}` | {taken} | {len(planned) - taken} | {refused or '-'} |"


def failed(rows: list[Row]) -> list[Row]:
    """Returns the cells that ended in an error."""
    return [row for row in rows if "error" in row]


def main() -> int:
    """Runs what is missing and prints the table; 1 where a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--stack", help="plan for this software")
    parser.add_argument("--third", action="store_true", help="one batch for each model and cluster")
    given = parser.parse_args()
    if not given.table:
        run(given.out, THIRD if given.third else GRID, given.stack)
    rows = rows_of(given.out)
    sys.stdout.writelines(f"{line}\n" for line in table(rows))
    sys.stderr.writelines(f"{row['cell']} {row['error']}\n" for row in failed(rows))
    return 1 if failed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
