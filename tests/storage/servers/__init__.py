"""Buckets on this machine: gs:// and s3:// without an account or another package, with faults.

    with bucket_server("gs") as server:
        os.environ |= server.env
        jaxdata.convert("texts", output=server.url("bucket/data"), source="web")
        server.faults = Faults(latency=0.03, unavailable=0.1)
        ...
        print(server.counts)

They answer what our clients ask, with true generations, ETags, preconditions and uploads in parts.
moto serves S3's conditions and ranges as well, but it refuses clients that sign nothing, keeps no
folder, needs 60 packages, and takes 80 ms for a range of an object of 64 MiB (5 ms here); and
Google's XML API, which speaks as S3 does, needs this server anyway.
"""

from tests.storage.servers.server import (
    BucketServer,
    Faults,
    Served,
    bucket_process,
    bucket_server,
)

__all__ = ["BucketServer", "Faults", "Served", "bucket_process", "bucket_server"]
