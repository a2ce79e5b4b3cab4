"""`python tools/train.py CONFIG [--field value …]`: the same as `jaxdata train`, as a script."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, if not installed
    from jaxdata.cli import main

    main(["train", *sys.argv[1:]])
