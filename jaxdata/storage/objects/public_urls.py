"""URLs without their secrets: who asks, and signatures."""

from __future__ import annotations

import re

_SIGNED = re.compile(r"[?#].*", re.DOTALL)
_BUCKETS = ("gs://", "s3://", "memory://")  # a ? in a name there is a part of it


def public_url(url: str) -> str:
    """A URL as messages may show it: without name and password, and what its query says.

    >>> public_url("https://me:pass@host/a.jsonl?X-Amz-Signature=ab12")
    'https://host/a.jsonl?…'
    """
    bare = bare_url(url)
    return f"{bare}?…" if "?" in url[len(bare) :] else bare


def bare_url(url: str) -> str:
    """A URL without name and password, query and fragment; paths stay.

    >>> bare_url("https://me:pass@host/a.jsonl?X-Amz-Signature=ab12")
    'https://host/a.jsonl'
    """
    scheme, mark, rest = url.partition("://")
    if not mark or url.startswith(_BUCKETS):
        return url
    host, slash, path = _SIGNED.sub("", rest).partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def without_secrets(text: str, url: str) -> str:
    """A text that may quote parts of a URL, without those that :func:`public_url` leaves out."""
    host, _, target = url.partition("://")[2].partition("/")
    named, at, _ = host.rpartition("@")
    query = _SIGNED.search(target)
    for secret in (named + at, query.group() if query else ""):
        text = text.replace(secret, "…") if secret and bare_url(url) != url else text
    return text
