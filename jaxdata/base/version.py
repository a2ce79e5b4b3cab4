"""The version of this package, as files that it writes say it."""

VERSION = "0.1.0"
