"""`python -m overlap_train.cli`: the command where no console script is installed."""

from __future__ import annotations

import sys

from overlap_train.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
