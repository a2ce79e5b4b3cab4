"""What a bucket's refusal means, in a sentence: which credentials were used, never their secret."""

from __future__ import annotations

from typing import Literal

from jaxdata.base.errors import DatasetError
from jaxdata.storage.contract import Unwritten
from jaxdata.storage.credentials import bucket_of, credentials_of
from jaxdata.storage.kvstores import reason

Done = Literal["read", "listed", "written"]
"""What is asked of a bucket."""
_DENIED = ("PERMISSION_DENIED", "UNAUTHENTICATED")
_EXPIRED = ("AccessDenied", "ExpiredToken", "TokenRefreshRequired")


def is_denied(said: str) -> bool:
    """Whether other credentials would do."""
    return said.startswith(_DENIED) or any(each in said for each in _EXPIRED)


def refusal(url: str, error: Exception, done: Done = "read") -> DatasetError:
    """The error for a request that a bucket refuses, and would again."""
    said = reason(error).rstrip(".")
    kind = Unwritten if done == "written" else DatasetError
    return kind(f"{url} cannot be {done}: {said}. {_meaning(url, said, done)}")


def no_such_bucket(url: str) -> DatasetError:
    """The error for a bucket that is not there."""
    return DatasetError(_nowhere(url))


def _meaning(url: str, said: str, done: Done) -> str:
    bucket, used = bucket_of(url), credentials_of(url).words
    verb = {"read": "read", "listed": "list", "written": "write"}[done]
    if is_denied(said):
        return f"{used} may not {verb} it: use others, or let these {verb} {bucket}"
    if "redirect" in said.lower() or "301" in said:
        return f"{bucket} is in another region: AWS_REGION names it"
    if said.startswith("NOT_FOUND") or "NoSuchBucket" in said:
        return _nowhere(url)
    return f"Look whether {bucket} is there and {_lower(used)} may {verb} it"


def _nowhere(url: str) -> str:
    used = credentials_of(url).words
    return f"There is no bucket {bucket_of(url)}, or {_lower(used)} may not see it: check its name"


def _lower(words: str) -> str:
    """In the middle of a sentence; names keep their capitals."""
    return words[:1].lower() + words[1:]
