"""What the environment says of a bucket: the service, the region, and which credentials are used.

The credentials are chosen here, and not left to the client, so that messages can name them.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from configparser import ConfigParser
from configparser import Error as ParseError
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jaxdata.base.errors import InputError
from jaxdata.base.threads import left_alone, waited

BUCKETS = ("gs", "s3", "az")
"""schemes of the URLs of buckets"""
ANONYMOUS = "JAXDATA_S3_ANONYMOUS"
"""1: public buckets of S3 are read without credentials"""
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL")
"""name a service other than Amazon's; the first that is set counts

The first and the last are Amazon's own, in its order; the second is of other tools, for S3 too.
"""
GOOGLE_ENDPOINT = "TENSORSTORE_GCS_HTTP_URL"
"""names a service other than Google's"""
_SERVICES: dict[str, tuple[str, ...]] = {
    "s3": ENDPOINTS,
    "gs": (GOOGLE_ENDPOINT,),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_GOOGLE = "https://storage.googleapis.com"
_GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS"
_GOOGLE_TOKEN = "GOOGLE_AUTH_TOKEN_FOR_TESTING"  # noqa: S105 (a name)
_GCLOUD = "~/.config/gcloud/application_default_credentials.json"
_METADATA = "http://metadata.google.internal"
_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}
_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
_SAYS = (
    *(name for names in _SERVICES.values() for name in names),
    *(ANONYMOUS, _GOOGLE_KEY, _GOOGLE_TOKEN, _ACCOUNT),
    *("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", *_FILES),
)
_ANYBODY_SECONDS = 10.0


class Credentials(NamedTuple):
    """A provider of credentials."""

    words: str
    """what messages call it, at the beginning of a sentence"""
    config: dict[str, Any]
    """what obstore is told; it finds the rest itself"""
    provider: Any = None
    """what obstore asks for credentials, where it has no way to them itself"""


def said_of_services() -> tuple[str | None, ...]:
    """What else the environment said, a bucket would be another one."""
    return tuple(map(os.environ.get, _SAYS))


def settings_of(url: str) -> dict[str, Any]:
    """The arguments with which obstore opens the bucket of a URL.

    Raises:
        InputError: the environment names a profile, a file or a service that is none.
    """
    found, (_, endpoint) = credentials_of(url), endpoint_of(url)
    config = dict(found.config)
    if endpoint:
        config["base_url" if url.startswith("gs:") else "endpoint"] = endpoint
    if url.startswith("s3:"):
        said = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        known = said or config.get("region") or (endpoint and "us-east-1")
        config["region"] = known or _region(bucket_of(url))
    return {"config": config} | ({"credential_provider": found.provider} if found.provider else {})


def credentials_of(url: str) -> Credentials:
    """What a bucket is asked with.

    Raises:
        InputError: `AWS_PROFILE` names no profile, `GOOGLE_APPLICATION_CREDENTIALS` no file.
    """
    scheme = url.partition("://")[0]
    if scheme == "s3":
        return _of_s3()
    if scheme == "gs":
        return _of_google()
    if scheme == "az":
        account = os.environ.get(_ACCOUNT)
        if not account:
            raise InputError(f"{_ACCOUNT} is not set: az:// needs the name of an account")
        return Credentials(f"The account {account} ({_ACCOUNT})", {"account_name": account})
    return Credentials("This process", {})


def endpoint_of(url: str) -> tuple[str, str]:
    """The variable that names another service for a URL, and what it says; ("", "") for none.

    Raises:
        InputError: that is no URL.
    """
    names = _SERVICES.get(url.partition("://")[0], ())
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
    if url.startswith("s3:"):
        return f"https://{url.split('/')[2]}.s3.amazonaws.com (no {ENDPOINTS[0]} names another)"
    if url.startswith("az:"):
        return f"https://{os.environ.get(_ACCOUNT, '')}.blob.core.windows.net ({_ACCOUNT})"
    return _GOOGLE if url.startswith("gs:") else bucket_of(url)


def bucket_of(url: str) -> str:
    """The URL of a bucket.

    >>> bucket_of("gs://bkt/ds/a")
    'gs://bkt'
    """
    return "/".join(url.split("/")[:3])


def _of_s3() -> Credentials:
    if os.environ.get(ANONYMOUS, "0") not in ("", "0"):
        words = f"Nobody ({ANONYMOUS}, or anonymous in a config)"
        return Credentials(words, {"skip_signature": True})
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return Credentials("The key in AWS_ACCESS_KEY_ID", {})
    named = {name: Path(os.environ.get(name) or usual) for name, usual in _FILES.items()}
    files = {name: path for name, each in named.items() if (path := each.expanduser()).is_file()}
    profile = os.environ.get("AWS_PROFILE")
    if profile or files:
        return _of_profile(profile, files)
    if any(map(os.environ.get, _CONTAINER)):
        return Credentials("The role of this container", {})
    nobody = f"or nobody (no key is set: AWS_ACCESS_KEY_ID, AWS_PROFILE, {ANONYMOUS}=1),"
    return Credentials(f"This machine's own role, {nobody}", {})


def _of_profile(profile: str | None, files: dict[str, Path]) -> Credentials:
    name = profile or "default"
    said = _said_of(name, list(files.values()))
    if said is None and profile:
        where = " nor ".join(map(str, files.values())) or " nor ".join(_FILES.values())
        raise InputError(
            f"AWS_PROFILE={profile}: there is no such profile in {where}: name one that is there, "
            "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    words = f"The profile {name!r} (AWS_PROFILE)" if profile else "The default profile"
    words += f" of {next(iter(files.values()))}"
    config = {name: said[name] for name in ("region",) if said and name in said}
    if said and "aws_access_key_id" in said:
        keys = ("access_key_id", "secret_access_key", "session_token")
        config |= {each: said[f"aws_{each}"] for each in keys if f"aws_{each}" in said}
        return Credentials(words, config)
    return Credentials(words, config, _provider_of(profile) if profile else None)


def _provider_of(profile: str) -> Any:
    """What asks for the credentials of a profile that holds none: of SSO, a role, a program."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise InputError(
            f"AWS_PROFILE={profile}: this profile holds no key, and boto3, which finds one for it, "
            "is not installed: pip install boto3; or set the keys that `aws configure "
            f"export-credentials --profile {profile} --format env` prints"
        ) from None
    return Boto3CredentialProvider(boto3.Session(profile_name=profile))


def _said_of(profile: str, files: list[Path]) -> dict[str, str] | None:
    """The settings of a profile, keys of the first file before others; None if it is nowhere."""
    found: dict[str, str] | None = None
    for file in files:
        parser = ConfigParser(interpolation=None, strict=False, default_section="")
        try:
            parser.read(file, "utf-8")
        except (ParseError, UnicodeDecodeError):
            continue
        for section in {profile, f"profile {profile}"} & set(parser.sections()):
            found = dict(parser[section]) | (found or {})
    return found


def _of_google() -> Credentials:
    if token := os.environ.get(_GOOGLE_TOKEN):
        return Credentials(f"The token in {_GOOGLE_TOKEN}", {"bearer_token": token})
    if file := os.environ.get(_GOOGLE_KEY):
        if not Path(file).is_file():
            raise InputError(
                f"{_GOOGLE_KEY}={file}: there is no such file: name the file of an account, or "
                "unset it to use that of gcloud or of this machine"
            )
        return Credentials(f"The account in {file} ({_GOOGLE_KEY})", {})
    if Path(_GCLOUD).expanduser().exists():
        return Credentials("The account of gcloud auth application-default login", {})
    words = f"This machine's own account, or nobody ({_GOOGLE_KEY} is not set),"
    return Credentials(words, {} if _is_on_google() else {"skip_signature": True})


@cache
def _is_on_google() -> bool:
    """Whether this machine has an account, as those of Google's have."""
    return bool(_answer_to_anybody(_METADATA)[0])


@cache
def _region(bucket: str) -> str:
    """The region that Amazon says a bucket is in."""
    _, headers = _answer_to_anybody(f"https://{bucket.removeprefix('s3://')}.s3.amazonaws.com")
    return headers.get("x-amz-bucket-region") or "us-east-1"


def _answer_to_anybody(address: str) -> tuple[int, Any]:
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
