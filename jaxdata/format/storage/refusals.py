"""What a bucket's refusal means, in a sentence: which credentials were used, never their secret."""

from __future__ import annotations

from jaxdata.errors import DatasetError
from jaxdata.format.storage.credentials import credentials_of
from jaxdata.format.storage.kvstores import reason


def refusal(url: str, error: Exception) -> DatasetError:
    """The error for a request that a bucket refuses, and would again."""
    said = reason(error)
    return DatasetError(f"{url} cannot be read: {said}. {_meaning(url, said)}")


def _meaning(url: str, said: str) -> str:
    bucket, used = "/".join(url.split("/")[:3]), credentials_of(url).words
    if said.startswith(("PERMISSION_DENIED", "UNAUTHENTICATED")) or "AccessDenied" in said:
        return f"{used} may not read it: use others, or let these read {bucket}"
    if "redirect" in said.lower() or "301" in said:
        return f"{bucket} is in another region: AWS_REGION names it"
    if said.startswith("NOT_FOUND") or "NoSuchBucket" in said:
        return f"There is no {bucket}, or {_lower(used)} may not see it: check its name"
    return f"Look whether {bucket} is there and {_lower(used)} may read it"


def _lower(words: str) -> str:
    """In the middle of a sentence; names keep their capitals."""
    return words[:1].lower() + words[1:]
