"""The section `storage`: where buckets are and what this host keeps of them; never a secret.

The environment wins: a config is shared between machines, and a variable is of this one. What a
config says becomes a variable of the process, so worker processes have it, too.
"""

import os
import re
from operator import attrgetter
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from jaxdata.base.errors import warn_once
from jaxdata.base.settings import Count, Settings, setting
from jaxdata.storage.credentials import ENDPOINTS

_SECRET = re.compile(r"secret|password|token|private|credential$|(^|_)key(_id)?$")


def _no_secret_in(url: str) -> str:
    """The URL of a service."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected the URL of a service, like https://minio.example:9000")
    if parts.username or parts.password:
        raise ValueError("a config holds no secrets: write the URL without what is before the @")
    return url


Endpoint = Annotated[str, AfterValidator(_no_secret_in)]


class _WithoutSecrets(Settings):
    """A section that refuses secrets by their names, and does not repeat them."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_secrets(cls, value: object) -> object:
        names = [str(name) for name in value] if isinstance(value, dict) else []
        for name in names:
            if name not in cls.model_fields and _SECRET.search(name.lower()):
                raise ValueError(
                    f"{name!r} is a secret, and a config holds none. For s3://, set "
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or name a "
                    "profile of ~/.aws/credentials (profile: mine); for gs://, name a file "
                    "(credentials_file: PATH)"
                )
        return value


class S3Section(_WithoutSecrets):
    """What `s3://` means."""

    endpoint: Endpoint | None = setting(
        None, "URL of a service other than Amazon's: MinIO, R2, Ceph"
    )
    region: str | None = setting(None, "region of that service; us-east-1", advanced=True)
    profile: str | None = setting(None, "profile of ~/.aws/credentials")
    anonymous: bool = setting(False, "read a public bucket without credentials", advanced=True)

    @model_validator(mode="after")
    def _one_way(self) -> "S3Section":
        if self.anonymous and self.profile is not None:
            raise ValueError("profile and anonymous exclude each other: keep one")
        return self


class GsSection(_WithoutSecrets):
    """What `gs://` means."""

    endpoint: Endpoint | None = setting(None, "URL of another service", advanced=True)
    credentials_file: str | None = setting(
        None, "file of the account, as gcloud or the console writes it", advanced=True
    )


class CacheSection(Settings):
    """What this host keeps of buckets."""

    folder: str | None = setting(None, "the folder; ~/.cache/jaxdata")
    bytes: Count | None = setting(None, "limit of all pages; a tenth of the free disk")


class StorageSection(_WithoutSecrets):
    """Buckets and the cache; variables of the environment win over each field."""

    s3: S3Section = S3Section()
    gs: GsSection = setting(GsSection(), "what `gs://` means", advanced=True)
    cache: CacheSection = CacheSection()
    seconds: float | None = setting(
        None, "how long a bucket may fail before a run ends; 600", gt=0, advanced=True
    )


VARIABLES: dict[str, tuple[str, ...]] = {
    "s3.endpoint": ENDPOINTS,
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.profile": ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "JAXDATA_S3_ANONYMOUS"),
    "s3.anonymous": ("JAXDATA_S3_ANONYMOUS", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    "gs.endpoint": ("TENSORSTORE_GCS_HTTP_URL",),
    "gs.credentials_file": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "cache.folder": ("JAXDATA_CACHE",),
    "cache.bytes": ("JAXDATA_CACHE_BYTES",),
    "seconds": ("JAXDATA_STORAGE_SECONDS",),
}
"""field -> the variable that it becomes, and others that say the same, and win as well"""
_ours: dict[str, str] = {}
"""variables that a config set"""


def use_storage(storage: StorageSection) -> None:
    """Have this process, and processes that it starts, open buckets as a config says.

    A config that says nothing changes nothing; of several, the last counts.
    """
    wanted = {field: text for field in VARIABLES if (text := _text(storage, field))}
    if not wanted:
        return
    names = {VARIABLES[field][0] for field in wanted}
    for name in [each for each in _ours if _is_ours(each) and each not in names]:
        del os.environ[name]
    for field, text in wanted.items():
        name, winner = VARIABLES[field][0], variable_of(field)
        if winner is None:
            _ours[name] = os.environ[name] = text
        elif os.environ[winner] != text:
            warn_once(f"storage.{field} of the config is not used: {winner} is set, which wins")


def variable_of(field: str) -> str | None:
    """The variable of the environment that wins over a field (`"s3.region"`), if one does."""
    names = VARIABLES.get(field, ())
    return next((each for each in names if os.environ.get(each) and not _is_ours(each)), None)


def _is_ours(name: str) -> bool:
    return name in _ours and os.environ.get(name) == _ours[name]


def _text(storage: StorageSection, field: str) -> str:
    """A field as a variable has it; "" for none."""
    value: Any = attrgetter(field)(storage)
    return "1" if value is True else str(value or "")
