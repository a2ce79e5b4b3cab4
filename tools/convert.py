"""`jaxdata convert` as a script, for a checkout: python tools/convert.py INPUT... --output DIR."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, if not installed
    from jaxdata.cli import main

    main(["convert", *sys.argv[1:]])
