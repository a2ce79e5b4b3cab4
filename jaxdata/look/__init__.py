"""What people look at: a dataset, a row, a plan, a run.

terminal               text from anywhere made safe and measured; plain tables
dataset_summary        a dataset: sources, lengths, tokenizer          jaxdata inspect
conversion_statistics  the counts of its conversion
document_text          one document, decoded
row_drawing            one row, drawn
packing                packing strategies, side by side
origins                the file and line of a document, its shard and record
trace                  the documents of a row, the rows of a document  jaxdata trace
search, states         documents that hold a text; a run's state, wherever it was saved
explanation, traced    the answers of `jaxdata trace`, as JSON and as lines
integrity              the state of a dataset's files, in seconds      jaxdata preview
validation             what a run will get, as JSON
preview_tables, plan   the same as tables
read_costs             what reading a run from far away will cost      jaxdata plan
run_page               a run under way                                 jaxdata top
cache_tables           what this host keeps of buckets                 jaxdata cache ls
"""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
