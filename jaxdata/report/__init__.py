"""A dataset and a run over it as one page to look at, which fetches nothing.

gathering       a report as plain values: what there is, computed once
lengths         documents by length
strategy_costs  packing strategies compared: padding, cuts, rows
share_curves    the curriculum over tokens: delivered, planned, asked
drawn_batch     a batch as segments to draw
samples         a few documents as text
left_out        what conversions quarantined and dropped
token_facts     bytes a token, ids in use
drawing         what charts share: colours, axes
svg             matplotlib's SVG without styles, in the page's colours
length_chart    lengths drawn
bar_charts      strategies, epochs and bytes a token drawn
curriculum_chart  shares over tokens drawn
chart_choice    which charts a report has, in which colours
templating      `templates/` filled in, everything escaped
page            the page
images          the charts as files
"""

from jaxdata.report.gathering import Report, Subject, gather
from jaxdata.report.images import write_images
from jaxdata.report.page import write_page

__all__ = ["Report", "Subject", "gather", "write_images", "write_page"]
