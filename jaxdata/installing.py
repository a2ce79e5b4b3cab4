"""The command that installs an extra, of this jaxdata: from an index, a checkout or a URL."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """What to type where an extra is missing.

    Where jaxdata came from an index it names it; else it names the folder or URL that it came from,
    since an index may have another jaxdata, or none.
    """
    return f"pip install {quote(_wanted(extra))}"


def _wanted(extra: str) -> str:
    url = _origin()
    if url is None:
        return f"jaxdata[{extra}]"
    if url.startswith("file:") and (folder := Path(unquote(urlsplit(url).path))).is_dir():
        return f"{folder}[{extra}]"
    return f"jaxdata[{extra}] @ {url}"


def _origin() -> str | None:
    """Where jaxdata was installed from; None for an index (PEP 610).

    A checkout that is used without being installed counts as installed from there.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    checkout = Path(__file__).parents[1]
    try:
        found = distribution("jaxdata").read_text("direct_url.json")
    except PackageNotFoundError:
        return checkout.as_uri() if (checkout / "pyproject.toml").is_file() else None
    return None if found is None else str(json.loads(found)["url"])
