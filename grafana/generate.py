"""Writes grafana/dashboards/tritonprobe_overview.json; run from the root of the repository.

python -m grafana.generate            writes the board
python -m grafana.generate --check    exit code 1 if it is stale
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana.board import board

BOARD = Path(__file__).parent / "dashboards" / "tritonprobe_overview.json"


def text() -> str:
    """The file's content, the same for the same metric table."""
    return json.dumps(board(), indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m grafana.generate [--check]\n")
        return 2
    if not arguments:
        BOARD.write_text(text())
        return 0
    if BOARD.exists() and BOARD.read_text() == text():
        return 0
    sys.stderr.write(f"{BOARD.name} is stale; run: python -m grafana.generate\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
