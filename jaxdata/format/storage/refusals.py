"""What a bucket's refusal means, in a sentence: which credentials were used, never their secret."""

from __future__ import annotations

import os
from pathlib import Path

from jaxdata.errors import DatasetError
from jaxdata.format.storage.kvstores import reason

_GCLOUD = "~/.config/gcloud/application_default_credentials.json"
_AWS = "~/.aws/credentials"


def refusal(url: str, error: Exception) -> DatasetError:
    """The error for a request that a bucket refuses, and would again."""
    said = reason(error)
    return DatasetError(f"{url} cannot be read: {said}. {_meaning(url, said)}")


def _meaning(url: str, said: str) -> str:
    bucket = "/".join(url.split("/")[:3])
    if said.startswith(("PERMISSION_DENIED", "UNAUTHENTICATED")) or "AccessDenied" in said:
        return f"{_used(url)} may not read it: use others, or let these read {bucket}"
    if "redirect" in said.lower() or "301" in said:
        return f"{bucket} is in another region: AWS_REGION names it"
    if said.startswith("NOT_FOUND") or "NoSuchBucket" in said:
        return f"There is no {bucket}, or {_used(url).lower()} may not see it: check its name"
    return f"Look whether {bucket} is there and {_used(url).lower()} may read it"


def _used(url: str) -> str:
    """Where the credentials for a URL come from."""
    if url.startswith("s3://"):
        return _used_of_s3()
    if url.startswith("gs://"):
        return _used_of_gs()
    return "This process"


def _used_of_s3() -> str:
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return "The key in AWS_ACCESS_KEY_ID"
    if profile := os.environ.get("AWS_PROFILE"):
        return f"The profile {profile!r} (AWS_PROFILE)"
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", _AWS)
    if file != os.devnull and Path(file).expanduser().exists():
        return f"The default profile of {file}"
    return "This machine's own role, or nobody (no key is set: AWS_ACCESS_KEY_ID, AWS_PROFILE),"


def _used_of_gs() -> str:
    if file := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return f"The account in {file} (GOOGLE_APPLICATION_CREDENTIALS)"
    if Path(_GCLOUD).expanduser().exists():
        return "The account of gcloud auth application-default login"
    return "This machine's own account, or nobody (GOOGLE_APPLICATION_CREDENTIALS is not set),"
