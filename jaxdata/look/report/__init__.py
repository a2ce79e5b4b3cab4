"""A dataset and a run over it as one page to look at, which fetches nothing.

gathering       a report as plain values: what there is, computed once
lengths         documents by length
strategy_costs  packing strategies compared: padding, cuts, rows
share_curves    the curriculum over tokens: delivered, planned, asked
drawn_batch     a batch as segments to draw
samples         a few documents as text
left_out        what conversions quarantined and dropped
view_facts      what views keep and drop, and copies beside what stays
token_facts     bytes a token, ids in use
charts/         parts drawn
templating      `templates/` filled in, everything escaped
page            the page
images          the charts as files
shown_batch     a batch in a line, and in a notebook as a picture
"""

from jaxdata.look.report.gathering import Report, Subject, gather
from jaxdata.look.report.page import check_installed, write_images, write_page

__all__ = ["Report", "Subject", "check_installed", "gather", "write_images", "write_page"]
