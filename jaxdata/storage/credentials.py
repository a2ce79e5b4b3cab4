"""Which credentials a bucket is asked with: chosen here, so that messages can name them."""

from __future__ import annotations

import os
from configparser import ConfigParser
from configparser import Error as ParseError
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jaxdata.base.errors import InputError

_GCLOUD = "~/.config/gcloud/application_default_credentials.json"
_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}
_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
ANONYMOUS = "JAXDATA_S3_ANONYMOUS"
"""1: public buckets of S3 are read without credentials"""
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL")
"""name a service other than Amazon's; the first that is set counts

The first and the last are Amazon's own, in its order; the second is of other tools, for S3 too.
"""
GOOGLE = "https://storage.googleapis.com"
GOOGLE_ENDPOINT = "TENSORSTORE_GCS_HTTP_URL"
"""names a service other than Google's"""


class Credentials(NamedTuple):
    """A provider of credentials."""

    spec: dict[str, Any] | None
    """tensorstore's `aws_credentials`; None for its own chain of all providers"""
    words: str
    """what messages call it, at the beginning of a sentence"""


def credentials_of(url: str) -> Credentials:
    """What a URL is opened with.

    Raises:
        InputError: `AWS_PROFILE` names no profile, `GOOGLE_APPLICATION_CREDENTIALS` no file.
    """
    if url.startswith("s3://"):
        return _of_s3()
    return Credentials(None, _words_of_gs() if url.startswith("gs://") else "This process")


def endpoint_of(url: str) -> tuple[str, str]:
    """The variable that names another service for a URL, and what it says; ("", "") for none.

    Raises:
        InputError: that is no URL.
    """
    names = {"s3": ENDPOINTS, "gs": (GOOGLE_ENDPOINT,)}.get(url.partition("://")[0], ())
    variable = next((each for each in names if os.environ.get(each)), "")
    said = os.environ.get(variable, "").rstrip("/")
    if said and not said.startswith(("http://", "https://")):
        raise InputError(
            f"{variable}={said}: expected the URL of a service, like https://minio.example:9000"
        )
    return variable, said


def service_of(url: str) -> str:
    """What messages call the service that is asked for a URL, at the beginning of a sentence."""
    variable, endpoint = endpoint_of(url)
    if endpoint:
        return f"{endpoint} ({variable})"
    if url.startswith("s3://"):
        return f"https://{url.split('/')[2]}.s3.amazonaws.com (no {ENDPOINTS[0]} names another)"
    return GOOGLE if url.startswith("gs://") else bucket_of(url)


def bucket_of(url: str) -> str:
    """The URL of a bucket.

    >>> bucket_of("gs://bkt/ds/a")
    'gs://bkt'
    """
    return "/".join(url.split("/")[:3])


def _of_s3() -> Credentials:
    """The provider that has the credentials: the chain of all complains of each that has none."""
    if os.environ.get(ANONYMOUS, "0") not in ("", "0"):
        return Credentials({"type": "anonymous"}, f"Nobody ({ANONYMOUS}, or anonymous in a config)")
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return Credentials({"type": "environment"}, "The key in AWS_ACCESS_KEY_ID")
    profile, files = os.environ.get("AWS_PROFILE"), _files()
    if profile or files:
        return _of_profile(profile, tuple(files.items()))
    if any(map(os.environ.get, _CONTAINER)):
        return Credentials({"type": "ecs"}, "The role of this container")
    nobody = f"or nobody (no key is set: AWS_ACCESS_KEY_ID, AWS_PROFILE, {ANONYMOUS}=1),"
    return Credentials(None, f"This machine's own role, {nobody}")


def _files() -> dict[str, str]:
    """The files of profiles that there are; the client is told of no other, whose lack it logs."""
    found = {}
    for name, usual in _FILES.items():
        path = Path(os.environ.get(name) or usual).expanduser()
        if path.is_file():
            found[name] = str(path)
        else:
            os.environ.setdefault(name, os.devnull)
    return found


@lru_cache(maxsize=8)
def _of_profile(profile: str | None, files: tuple[tuple[str, str], ...]) -> Credentials:
    name, known = profile or "default", dict(files)
    keys = _keys(name, tuple(known.values()))
    if keys is None and profile:
        where = " nor ".join(known.values()) or " nor ".join(_FILES.values())
        raise InputError(
            f"AWS_PROFILE={profile}: there is no such profile in {where}: name one that is there, "
            "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    words = f"The profile {name!r} (AWS_PROFILE)" if profile else "The default profile"
    words += f" of {known.get('AWS_SHARED_CREDENTIALS_FILE') or known.get('AWS_CONFIG_FILE')}"
    if keys and "aws_access_key_id" in keys:
        credentials, config = (known.get(each, os.devnull) for each in _FILES)
        spec = {"type": "profile", "profile": name}
        return Credentials({**spec, "credentials_file": credentials, "config_file": config}, words)
    return Credentials({"type": "default", "profile": name} if profile else None, words)


def _keys(profile: str, files: tuple[str, ...]) -> set[str] | None:
    """The settings of a profile; None if it is nowhere."""
    found: set[str] | None = None
    for file in files:
        parser = ConfigParser(interpolation=None, strict=False, default_section="")
        try:
            parser.read(file, "utf-8")
        except (ParseError, UnicodeDecodeError):  # the client may understand it
            return set()
        for section in {profile, f"profile {profile}"} & set(parser.sections()):
            found = (found or set()) | set(parser[section])
    return found


def _words_of_gs() -> str:
    if file := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        if not Path(file).is_file():  # the client would go on with other accounts
            raise InputError(
                f"GOOGLE_APPLICATION_CREDENTIALS={file}: there is no such file: name the file of "
                "an account, or unset it to use that of gcloud or of this machine"
            )
        return f"The account in {file} (GOOGLE_APPLICATION_CREDENTIALS)"
    if Path(_GCLOUD).expanduser().exists():
        return "The account of gcloud auth application-default login"
    return "This machine's own account, or nobody (GOOGLE_APPLICATION_CREDENTIALS is not set),"
