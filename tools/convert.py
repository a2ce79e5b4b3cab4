"""`jaxdata convert` as a script, for a checkout: python tools/convert.py INPUT... --output DIR."""

from __future__ import annotations

import sys

from jaxdata.cli import main

if __name__ == "__main__":
    main(["convert", *sys.argv[1:]])
