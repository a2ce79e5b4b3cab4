"""Configs: one YAML file that determines every row of training; read, validated and loaded.

config_values    a YAML file or mapping, with the line of each field, and overrides
curriculum       fields: phases, weights, epochs
sections         fields made from a room's own settings
storage_section  fields: buckets, the cache of a host; and their use
config_fields    all other fields: `Config`
config_reader    values to a `Config`, or errors that name line and remedy
training_rows    a `Config` to the mixture of its training split
amendment_order  which of its amendments come next
loading          a `Config` to rows and loaders
annotated        a `Config` as YAML: what each field means, and where it was set
json_schema      the fields as a JSON Schema, for editors
"""

from jaxdata.config.config_fields import Config
from jaxdata.config.config_reader import load_config, packaged_configs, parse_overrides
from jaxdata.config.loading import build_rows, load, loader_arguments, open_data, unscored

__all__ = [
    "Config",
    "build_rows",
    "load",
    "load_config",
    "loader_arguments",
    "open_data",
    "packaged_configs",
    "parse_overrides",
    "unscored",
]
