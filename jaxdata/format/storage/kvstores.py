"""A URL as tensorstore's KvStore: its driver, and what the environment says of the service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jaxdata.errors import DatasetError, InputError

FORKED = (
    "remote data cannot be read in a forked process: start workers with 'spawn' "
    "(torch: DataLoader(multiprocessing_context='spawn'))"
)
_AWS_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}
_RETRIES = {"max_retries": 3, "initial_delay": "100ms", "max_delay": "1s"}
_LIMITS = {
    f"{service}_request_{limit}": value
    for service in ("gcs", "s3")
    for limit, value in (("concurrency", {"limit": 64}), ("retries", _RETRIES))
}
"""of requests: beyond these few tries `Request` tries again, and says so"""


def open_kvstore(url: str) -> Any:
    """The KvStore of the objects below a URL.

    Raises:
        InputError: no store can have this URL.
    """
    import tensorstore

    try:
        return tensorstore.KvStore.open(kvstore_spec(url), context=process_context()).result()
    except ValueError as error:
        raise InputError(f"{url} cannot be opened: {reason(error)}") from None


def kvstore_spec(url: str) -> Any:
    """What tensorstore opens for the objects below a URL.

    Of `s3://`, `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` names a service other than Amazon's
    (MinIO, R2, Ceph); tensorstore itself reads the other `AWS_…` variables.
    """
    if not url.startswith("s3://"):
        return f"{url}/"
    _quiet_about_missing_files()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return f"{url}/"
    bucket, _, path = url.removeprefix("s3://").partition("/")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return {
        "driver": "s3",
        "bucket": bucket,
        "path": f"{path}/" if path else "",
        "endpoint": endpoint.rstrip("/"),
        # Without a region tensorstore asks Amazon, which does not know the service.
        "aws_region": region or "us-east-1",
    }


def _quiet_about_missing_files() -> None:
    """Name no file that is not there: the client prints an error for each, for every request."""
    for name, file in _AWS_FILES.items():
        if not Path(file).expanduser().exists():
            os.environ.setdefault(name, os.devnull)


def reason(error: BaseException) -> str:
    """What a store says, without the place in tensorstore's source."""
    return str(error).split(" [")[0].split("\n")[0]


_contexts: dict[int, Any] = {}


def process_context() -> Any:
    """The tensorstore context of this process; it must not be used across a fork."""
    import tensorstore

    process = os.getpid()
    if process not in _contexts:
        if _contexts:
            raise DatasetError(FORKED)
        _contexts[process] = tensorstore.Context(_LIMITS)
    return _contexts[process]
