"""What the environment says of a bucket: the service, the region, the keys."""

from __future__ import annotations

import os
from configparser import ConfigParser, Error
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxdata.storage.credentials import (
    ANONYMOUS,
    ENDPOINTS,
    GOOGLE_ENDPOINT,
    credentials_of,
    endpoint_of,
)
from jaxdata.storage.kvstores import answer_to_anybody

_SECONDS = "60s"  # an answer takes at most, of 16 MiB
_GOOGLE_TOKEN = "GOOGLE_AUTH_TOKEN_FOR_TESTING"  # noqa: S105 (a name)
_SERVICES = (GOOGLE_ENDPOINT, *ENDPOINTS, "AWS_PROFILE", ANONYMOUS)
_CLIENT = {"allow_http": True, "timeout": _SECONDS, "connect_timeout": "10s"}


def settings_of(scheme: str, bucket: str) -> dict[str, Any]:
    """The arguments with which obstore opens a bucket, as tensorstore would open it."""
    credentials_of(f"{scheme}://{bucket}")  # refuses what is set and leads nowhere
    config = _google() if scheme == "gs" else _amazon(bucket)
    return {"config": config, "client_options": _CLIENT}


def said_of_services() -> tuple[str | None, ...]:
    """What else the environment said, a bucket would be another one."""
    return tuple(map(os.environ.get, _SERVICES))


def _google() -> dict[str, Any]:
    """Where tests put Google's store; its credentials obstore finds itself."""
    config = {"base_url": endpoint_of("gs://")[1], "bearer_token": os.environ.get(_GOOGLE_TOKEN)}
    return {name: value for name, value in config.items() if value}


def _amazon(bucket: str) -> dict[str, Any]:
    said, profile = os.environ, _profile()
    _, endpoint = endpoint_of("s3://")
    region = said.get("AWS_REGION") or said.get("AWS_DEFAULT_REGION") or profile.get("region")
    config: dict[str, Any] = {"region": region or ("us-east-1" if endpoint else _region(bucket))}
    if endpoint:
        config["endpoint"] = endpoint
    if credentials_of(f"s3://{bucket}").spec == {"type": "anonymous"}:
        config["skip_signature"] = True
    elif "AWS_ACCESS_KEY_ID" not in said and "aws_access_key_id" in profile:
        names = ("access_key_id", "secret_access_key", "session_token")
        config |= {name: profile[f"aws_{name}"] for name in names if f"aws_{name}" in profile}
    return config


def _profile() -> dict[str, str]:
    """What the files of Amazon's tools say under the name of the profile."""
    name = os.environ.get("AWS_PROFILE") or "default"
    found: dict[str, str] = {}
    for variable, file, prefix in (
        ("AWS_CONFIG_FILE", "~/.aws/config", "" if name == "default" else "profile "),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", ""),
    ):
        parser = ConfigParser(interpolation=None)
        with suppress(OSError, Error, UnicodeDecodeError):
            parser.read(Path(os.environ.get(variable) or file).expanduser())
            found |= dict(parser.items(prefix + name))
    return found


def _region(bucket: str) -> str:
    """The region that Amazon says a bucket is in."""
    _, headers = answer_to_anybody(f"https://{bucket}.s3.amazonaws.com")
    return headers.get("x-amz-bucket-region") or "us-east-1"
