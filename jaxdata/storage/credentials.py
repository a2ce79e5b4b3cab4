"""What the environment says of a bucket: the service, the region, and which credentials are used.

The credentials are chosen here, and not left to the client, so that messages can name them.
"""

import configparser
import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jaxdata.base.errors import InputError
from jaxdata.storage.contract import bucket_of

ANONYMOUS = "JAXDATA_S3_ANONYMOUS"
"""1: public buckets of S3 are read without credentials"""
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL")
"""name a service other than Amazon's; the first that is set counts

The first and the last are Amazon's own, in its order; the second is of other tools, for S3 too.
"""
_SERVICES: dict[str, tuple[str, ...]] = {
    "s3": ENDPOINTS,
    "gs": ("TENSORSTORE_GCS_HTTP_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS"
_GOOGLE_TOKEN = "GOOGLE_AUTH_TOKEN_FOR_TESTING"  # noqa: S105 (a name)
_GCLOUD = "~/.config/gcloud/application_default_credentials.json"
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
_SAYS = (
    *(name for names in _SERVICES.values() for name in names),
    *(ANONYMOUS, _GOOGLE_KEY, _GOOGLE_TOKEN, _ACCOUNT),
    *("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", *_FILES),
)


class Credentials(NamedTuple):
    """A provider of credentials."""

    words: str
    """what messages call it, at the beginning of a sentence"""
    config: dict[str, Any]
    """what obstore is told; it finds the rest itself"""


def said_of_services() -> tuple[str | None, ...]:
    """What else the environment said, a bucket would be another one."""
    return tuple(map(os.environ.get, _SAYS))


def settings_of(url: str) -> dict[str, Any]:
    """What obstore is told of the bucket of a URL.

    Raises:
        InputError: the environment names a profile, a file or a service that is none.
    """
    config, (_, endpoint) = dict(credentials_of(url).config), endpoint_of(url)
    if endpoint:
        config["base_url" if url.startswith("gs:") else "endpoint"] = endpoint
    if url.startswith("s3:"):
        said = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        config["region"] = said or config.get("region") or "us-east-1"
    return config


def credentials_of(url: str) -> Credentials:
    """What a bucket is asked with.

    Raises:
        InputError: `AWS_PROFILE` names no profile with a key, `GOOGLE_APPLICATION_CREDENTIALS` no
            file, or no account of Azure's is named.
    """
    found = {"s3": _of_s3, "gs": _of_google, "az": _of_azure}.get(url.partition("://")[0])
    return found() if found else Credentials("These credentials", {})


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
    scheme, _, bucket = bucket_of(url).partition("://")
    usual = {
        "s3": f"https://{bucket}.s3.amazonaws.com (no {ENDPOINTS[0]} names another)",
        "az": f"https://{os.environ.get(_ACCOUNT, '')}.blob.core.windows.net ({_ACCOUNT})",
        "gs": "https://storage.googleapis.com",
    }
    return f"{endpoint} ({variable})" if endpoint else usual.get(scheme, bucket_of(url))


def _of_s3() -> Credentials:
    if os.environ.get(ANONYMOUS, "0") not in ("", "0"):
        words = f"Nobody ({ANONYMOUS}, or anonymous in a config)"
        return Credentials(words, {"skip_signature": True})
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return Credentials("The key in AWS_ACCESS_KEY_ID", {})
    named = [Path(os.environ.get(name) or usual) for name, usual in _FILES.items()]
    files = [file for each in named if (file := each.expanduser()).is_file()]
    profile = os.environ.get("AWS_PROFILE")
    if profile or files:
        return _of_profile(profile, files)
    if any(map(os.environ.get, _CONTAINER)):
        return Credentials("The role of this container", {})
    nobody = f"or nobody (no key is set: AWS_ACCESS_KEY_ID, AWS_PROFILE, {ANONYMOUS}=1),"
    return Credentials(f"This machine's own role, {nobody}", {})


def _of_profile(profile: str | None, files: list[Path]) -> Credentials:
    said: dict[str, str] = {}
    for file in files:  # keys of the first before others
        parser = configparser.ConfigParser(interpolation=None, strict=False, default_section="")
        with suppress(configparser.Error, UnicodeDecodeError):
            parser.read(file, "utf-8")
            for section in (profile or "default", f"profile {profile}"):
                said = (dict(parser[section]) if section in parser else {}) | said
    keys = ("access_key_id", "secret_access_key", "session_token")
    config = {key: said[f"aws_{key}"] for key in keys if f"aws_{key}" in said}
    if profile and not config:
        raise InputError(
            f"AWS_PROFILE={profile}: there is no such profile with a key in "
            f"{' nor '.join(map(str, files or _FILES.values()))}: name one that has a key, or set "
            f"those that `aws configure export-credentials --profile {profile} --format env` prints"
        )
    words = f"The profile {profile!r} (AWS_PROFILE)" if profile else "The default profile"
    config |= {"region": said["region"]} if "region" in said else {}
    return Credentials(f"{words} of {files[0]}", config)


def _of_azure() -> Credentials:
    account = os.environ.get(_ACCOUNT)
    if not account:
        raise InputError(f"{_ACCOUNT} is not set: az:// needs the name of an account")
    return Credentials(f"The account {account} ({_ACCOUNT})", {"account_name": account})


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
    try:
        return bool(socket.gethostbyname("metadata.google.internal"))
    except OSError:
        return False
