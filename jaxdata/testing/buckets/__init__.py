"""Buckets on this machine, for tests: gs:// and s3:// without an account, and with faults.

from jaxdata.testing.buckets import Faults, bucket_server

with bucket_server("gs") as server:
os.environ |= server.env
jaxdata.convert("texts", output=server.url("bucket/data"), source="web")
server.faults = Faults(latency=0.03, unavailable=0.1)
...
print(server.counts)
"""

from jaxdata.testing.buckets.faults import Faults
from jaxdata.testing.buckets.request_log import Counts, Served
from jaxdata.testing.buckets.server import BucketServer
from jaxdata.testing.buckets.server_process import bucket_process
from jaxdata.testing.buckets.serving import bucket_server, fault_proxy

__all__ = [
    "BucketServer",
    "Counts",
    "Faults",
    "Served",
    "bucket_process",
    "bucket_server",
    "fault_proxy",
]
