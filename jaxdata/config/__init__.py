"""Configs: one YAML that says which row is the i-th of training; read, checked, and loaded."""

from jaxdata.config.loading import build_rows, load, loader_arguments, open_data
from jaxdata.config.models import Config
from jaxdata.config.reading import load_config
from jaxdata.config.sources import packaged_configs, parse_overrides

__all__ = [
    "Config",
    "build_rows",
    "load",
    "load_config",
    "loader_arguments",
    "open_data",
    "packaged_configs",
    "parse_overrides",
]
