"""A dataset and a run over it as one page to look at, which fetches nothing.

All is gathered once as plain values, then drawn.
"""

from jaxdata.look.report.gathering import Subject, add_run, gather
from jaxdata.look.report.page import check_installed, write_images, write_page

__all__ = ["Subject", "add_run", "check_installed", "gather", "write_images", "write_page"]
