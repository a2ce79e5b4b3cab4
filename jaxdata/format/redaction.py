"""Commands without their secrets, for files that others read."""

from __future__ import annotations

import re

_MOST = 2**14
_HIDDEN = "…"
_NAMED = r"(?:password|passwd|secret|credentials?|api[_-]?key)"
_VALUE = r"(?:'[^']*'|\"[^\"]*\"|[^\s,)}]+)"
# As Hugging Face, GitHub, OpenAI, Amazon, Google and JSON web tokens write theirs.
_KEY = r"\b(?:hf_|gh[opsu]_|github_pat_|sk-|AKIA|ASIA|ya29\.|AIza|eyJ)[\w.-]{12,}"
_SECRETS = (
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/ '\"]*@"), rf"\1{_HIDDEN}@"),  # who asks
    (re.compile(r"(?<=[?&])([\w.~%-]+)=[^&#\s'\"]*"), rf"\1={_HIDDEN}"),  # signatures, and others
    (re.compile(rf"(?i)({_NAMED}[\w-]*['\"]?[=:\s]+){_VALUE}"), rf"\1{_HIDDEN}"),
    (re.compile(_KEY), _HIDDEN),
)


def redacted(command: str) -> str:
    """A command without names and passwords in URLs, values of their queries, and known tokens.

    At most 16,384 characters are kept.

    >>> redacted("jaxdata convert 'https://me:pass@host/a.jsonl?X-Amz-Signature=ab12&v=3'")
    "jaxdata convert 'https://…@host/a.jsonl?X-Amz-Signature=…&v=…'"
    """
    for secret, instead in _SECRETS:
        command = secret.sub(instead, command)
    return command if len(command) <= _MOST else f"{command[:_MOST]} {_HIDDEN}"
