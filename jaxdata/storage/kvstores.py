"""A URL as tensorstore's KvStore: its driver, and what the environment says of the service."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from typing import Any, Literal

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.threads import left_alone, waited
from jaxdata.storage.credentials import credentials_of, endpoint_of

FORKED = (
    "remote data cannot be read in a forked process: start workers with 'spawn' "
    "(torch: DataLoader(multiprocessing_context='spawn'))"
)
_RETRIES = {"max_retries": 3, "initial_delay": "100ms", "max_delay": "1s"}
_LIMITS = {
    f"{service}_request_{limit}": value
    for service in ("gcs", "s3")
    for limit, value in (("concurrency", {"limit": 64}), ("retries", _RETRIES))
}
"""of requests: beyond these few tries `Request` tries again, and says so"""


Purpose = Literal["reading", "ahead", "writing"]
_OWN: dict[Purpose, dict[str, Any]] = {
    "reading": {},
    "ahead": {f"{service}_request_concurrency": {"limit": 64} for service in ("gcs", "s3")},
    "writing": {
        f"{service}_request_retries": _RETRIES | {"max_retries": 32, "max_delay": "2s"}
        for service in ("gcs", "s3")
    },
}
"""What nobody waits for yet has a queue of its own; what is written is tried for a minute."""
_ANYBODY_SECONDS = 10.0


def open_kvstore(url: str, purpose: Purpose = "reading") -> Any:
    """The KvStore of the objects below a URL.

    Raises:
        InputError: no store can have this URL.
    """
    import tensorstore

    spec = kvstore_spec(url)
    try:
        return waited(tensorstore.KvStore.open(spec, context=context_for(purpose)))
    except ValueError as error:
        raise InputError(f"{url} cannot be opened: {reason(error)}") from None


def kvstore_spec(url: str) -> Any:
    """What tensorstore opens for the objects below a URL.

    `credentials` says which service is asked, and with which credentials.
    """
    credentials, (_, endpoint) = credentials_of(url).spec, endpoint_of(url)
    if not url.startswith("s3://"):
        return f"{url}/"
    bucket, _, path = url.removeprefix("s3://").partition("/")
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": f"{path}/" if path else ""}
    if credentials:
        spec["aws_credentials"] = credentials
    if endpoint:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        # Without a region tensorstore asks Amazon, which does not know the service.
        spec |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    return spec


def answer_to_anybody(address: str) -> tuple[int, Any]:
    """The status and headers of an answer without credentials; (0, {}) for none."""
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310

    def ask() -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=_ANYBODY_SECONDS) as answer:  # noqa: S310
                return answer.status, answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.headers
        except (OSError, ValueError):
            return 0, {}

    found: tuple[int, Any] = waited(left_alone(ask))
    return found


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


def context_for(purpose: Purpose) -> Any:
    """The context of this process, with what a purpose has of its own."""
    import tensorstore

    shared = process_context()
    own = _OWN[purpose]
    return tensorstore.Context(tensorstore.Context.Spec(own), shared) if own else shared
