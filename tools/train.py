"""`python tools/train.py CONFIG [--field value …]`: the same as `jaxdata train`, as a script."""

from __future__ import annotations

import sys

from jaxdata.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
