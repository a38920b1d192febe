"""What only the data set and the plug-ins know: whether each cell could start, found out before any does."""

import json
from collections import defaultdict
from pathlib import Path

from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.local.launch import check
from vfl.sweep.plan import Cell, Plan, Problems


def check_cells(plan: Plan, path: Path) -> None:
    """Put every cell through the checks that `cafe run` begins with; all that is wrong is said at once."""
    problems = Problems()
    by_data: dict[str, list[Cell]] = defaultdict(list)
    for cell in plan.cells:
        read = [cell.config.data.model_dump(mode="json"), cell.config.federation.label_holder]  # whose labels count
        by_data[json.dumps(read, sort_keys=True)].append(cell)
    for cells in by_data.values():  # one data set in memory at a time
        data: Data | None = None
        for cell in cells:
            try:
                if data is None:
                    data = load_data(cell.config)
                check(cell.config, data)
            except UserError as error:
                problems.add(str(error), cell.name)
            except Exception:  # a bug in a plug-in: its cell will fail, and its log say where  # nosec B112
                continue
    problems.raise_if_any(path, len(plan.cells))
