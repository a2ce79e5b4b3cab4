"""Waiting for a bucket: further tries, limits, words, and an end at once when nobody waits."""

import asyncio
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.storage import client
from jaxdata.storage.client import Failed, Request
from jaxdata.storage.credentials import ENDPOINTS

Patch = pytest.MonkeyPatch
BUSY = Failed("503 Service Unavailable", 503)
DENIED = Failed("403 Forbidden", 403)


def request(*answers: Any, url: str = "gs://bkt/a", done: Any = "read") -> Request:
    """A request that is answered so, one after the other; the last for ever."""
    left = list(answers)

    async def ask() -> Any:
        said = left.pop(0) if len(left) > 1 else left[0]
        if said is None:  # silence
            await asyncio.sleep(1e6)
        if isinstance(said, Exception):
            raise said
        return said

    return Request(ask, url, done)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: Patch) -> None:
    for state in ("_reached", "_allowed", "_said"):
        monkeypatch.setattr(client, state, type(getattr(client, state))())
    for name in (*ENDPOINTS, "TENSORSTORE_GCS_HTTP_URL", "JAXDATA_STORAGE_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.001)


def test_what_may_pass_is_asked_again() -> None:
    asked = request(BUSY, Failed("connection reset"), Failed("429 Slow Down", 429), b"content")
    assert (asked.result(), asked.tries) == (b"content", 4)


def test_a_refusal_is_final_and_says_who_was_refused(monkeypatch: Patch, tmp_path: Path) -> None:
    (tmp_path / "me.json").touch()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "me.json"))
    me = f"he account in {tmp_path}/me.json (GOOGLE_APPLICATION_CREDENTIALS)"
    for error, said in {
        DENIED: f"403 Forbidden. T{me} may not read it: use others, or let these read gs://bkt",
        Failed("404 Not Found", 404): (
            f"404 Not Found. There is no bucket gs://bkt, or t{me} may not see it: check its name"
        ),
        Failed("301 Moved", 301): "301 Moved. gs://bkt is in another region: AWS_REGION names it",
        Failed("strange", None): f"strange. Look whether gs://bkt is there and t{me} may read it",
        Failed("Range request not supported by", None): (
            "Range request not supported by. This server hands out whole files only, not ranges of "
            "bytes: download the file"
        ),
    }.items():
        asked = request(error)
        with pytest.raises(DatasetError) as caught:
            asked.result()
        assert (str(caught.value), asked.tries) == (f"gs://bkt/a cannot be read: {said}", 1)
        assert isinstance(caught.value, InputError), "as it may be of an input"


ANSWERED = "Server returned non-2xx status code:"


def test_errors_of_obstore_are_what_the_service_said() -> None:
    for text, said, status in (
        (
            f"Generic S3 error: GET a - {ANSWERED} 400 Bad Request: <?xml?>\n<Error>"
            "<Code>ExpiredToken</Code></Error>\n\nDebug source: 500",
            "400 Bad Request: ExpiredToken",
            400,
        ),
        (f"GET a - {ANSWERED} 503 Service Unavailable: busy", "503 Service Unavailable", 503),
        ("Generic HTTP error: GET a - HTTP error: error sending", "HTTP error: error sending", 0),
        ("Generic HTTP error: no header", "no header", None),
        ("Generic error: Invalid range: 5", "Generic error: Invalid range: 5", 416),
    ):
        found = Failed.of(ValueError(text))
        assert (found.said, found.status) == (said, status)
    assert Failed.of(FileNotFoundError("none")).status == 404


DENIALS = [DENIED, Failed("401 Unauthorized", 401), Failed("400: ExpiredToken", 400)]


@pytest.mark.parametrize("denied", DENIALS)
def test_what_was_allowed_may_be_refused_for_a_while(denied: Failed, monkeypatch: Patch) -> None:
    assert request(b"content").result()
    assert request(denied, denied, b"content").result() == b"content"
    monkeypatch.setattr(client, "_SHORT_LIMIT", 0.05)
    asked = request(denied)
    with pytest.raises(DatasetError, match=f"^gs://bkt/a cannot be read: {denied.said}. "):
        asked.result()
    assert asked.tries > 1
    assert request(b"content", url="https://host/a").result()
    for done, url in (("written", "gs://bkt/a"), ("read", "https://host/a")):
        asked = request(denied, url=url, done=done)
        with pytest.raises(DatasetError, match=rf"^{url} cannot be {done}: "):
            asked.result()
        assert asked.tries == 1, "it was allowed to read, and a URL has its credentials in it"


SERVICES = [
    ("gs://bkt/a", "https://storage.googleapis.com"),
    ("https://host/a", "https://host"),
    ("s3://bkt/a", "http://minio:9000 (AWS_S3_ENDPOINT_URL)"),
]


@pytest.mark.parametrize(("url", "service"), SERVICES)
def test_a_service_that_never_answers_is_named_sooner_than_one_that_has(
    url: str, service: str, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = count(step=0.01)  # each look at it
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setenv("AWS_S3_ENDPOINT_URL", "http://minio:9000/")
    monkeypatch.setattr(client, "_SHORT_LIMIT", 0.05)
    monkeypatch.setattr(client, "_SAY_FIRST", 0.005)
    with pytest.raises(DatasetError) as caught:
        request(Failed("no such host"), url=url).result()
    assert str(caught.value) == (
        f"{url} cannot be read: {service} has not answered as it should for 0 s (no such host). "
        "Look whether that is the service, whether this machine reaches it, and whether these "
        "credentials still hold; JAXDATA_STORAGE_SECONDS sets how long a run waits"
    )
    assert caplog.messages == [f"waiting for {url} at {service} since 0 s (no such host)"]
    client._reached.add(url.rpartition("/")[0])
    assert request(*[Failed("no such host")] * 7, b"content", url=url).result() == b"content"


def test_an_outage_ends_the_run_in_words(monkeypatch: Patch) -> None:
    monkeypatch.setenv("JAXDATA_STORAGE_SECONDS", "0.01")
    with pytest.raises(DatasetError, match=r"gs://bkt/a cannot be read: .* for 0 s \(503 Servi"):
        request(BUSY).result()
    monkeypatch.setenv("JAXDATA_STORAGE_SECONDS", "soon")
    with pytest.raises(InputError, match="JAXDATA_STORAGE_SECONDS='soon': expected a number"):
        request(BUSY)
