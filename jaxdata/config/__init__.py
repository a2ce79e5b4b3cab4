"""Configs: one YAML file that determines every row of training; read, validated and loaded."""

from jaxdata.config.config_fields import Config
from jaxdata.config.config_reader import load_config
from jaxdata.config.loading import build_rows, load, loader_arguments, open_data

__all__ = ["Config", "build_rows", "load", "load_config", "loader_arguments", "open_data"]
