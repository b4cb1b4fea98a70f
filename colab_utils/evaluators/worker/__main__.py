"""Start the fork server: `python -I worker/__main__.py DESCRIPTOR [MODULE ...]`."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Isolated mode knows no folder of the script, and programs shall not see this one.
    folder = Path(__file__).resolve().parent
    sys.path.insert(0, str(folder.parent))
    server = importlib.import_module(f"{folder.name}.server")
    sys.path.pop(0)
    server.main(int(sys.argv[1]), sys.argv[2:])
