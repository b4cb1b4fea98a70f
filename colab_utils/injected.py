"""What papermill put into this notebook: parameters that the notebook does not have are refused.

papermill warns of them and goes on with defaults. It puts what it was given into a cell right
behind the notebook's own parameters, which is seen in the kernel's history of cells.
"""

from __future__ import annotations

import ast
from itertools import pairwise

from colab_utils.errors import ParameterError
from colab_utils.front_end import cells_run

# The first line of the cell that papermill writes.
_INJECTED = "# Parameters"


def refuse_unknown() -> None:
    """Raise `ParameterError` for an injected parameter that the notebook does not have.

    Does nothing outside a notebook, and where nothing was injected.
    """
    for own, given in pairwise(cells_run()):
        known = _assigned(own)
        if given.split("\n", 1)[0].strip() != _INJECTED or not known:
            continue
        for name in _assigned(given):
            if name not in known:
                raise ParameterError(
                    "is not a parameter of this notebook",
                    where=f"parameter {name}",
                    mend=f"it has {', '.join(known)}",
                )


def _assigned(cell: str) -> list[str]:
    """Names that a cell assigns at its top level, in order; none for a cell that is no Python."""
    try:
        body = ast.parse(cell).body
    except (SyntaxError, ValueError):
        return []
    targets = [target for line in body if isinstance(line, ast.Assign) for target in line.targets]
    targets += [line.target for line in body if isinstance(line, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
