"""A dataset and a run over it as one page to look at, which fetches nothing.

gathering       a report as plain values: what there is, computed once
lengths         documents by length
strategy_costs  packing strategies compared: padding, cuts, rows
share_curves    the curriculum over tokens: delivered, planned, asked
drawn_batch     a batch as segments to draw
samples         a few documents as text
left_out        what conversions quarantined and dropped
token_facts     bytes a token, ids in use
charts          numbers to charts, by matplotlib
svg             matplotlib's SVG without styles, in the page's colours
page            the page, and the charts as files; `templates/` has its parts
"""

from jaxdata.report.gathering import Report, Subject, gather
from jaxdata.report.page import page, write_images, write_page

__all__ = ["Report", "Subject", "gather", "page", "write_images", "write_page"]
