"""Arguments that commands share, or that are made from models.

run_config       CONFIG and overrides, for every command about a run
convert_options  the options of `convert`, from the fields of its settings
"""
