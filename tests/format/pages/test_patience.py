"""Waiting for a bucket: second tries, limits, words, and an end at once when nobody waits."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jaxdata.background import Stopped, until
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.storage import patience
from jaxdata.format.storage.contract import Unwritten
from jaxdata.format.storage.credentials import ENDPOINTS
from jaxdata.format.storage.patience import Request


class Answer:
    """A future as tensorstore's: a value, an error, or silence."""

    state = "value"

    def __init__(self, said: Any) -> None:
        self._said = said

    def result(self, timeout: float) -> Any:
        if self._said is None:
            time.sleep(timeout)
            raise TimeoutError
        if isinstance(self._said, Exception):
            raise self._said
        return self

    @property
    def value(self) -> Any:
        return self._said

    def cancel(self) -> None:
        pass


def request(*answers: Any, part: slice | None = None) -> Request:
    """A request that is answered so, one after the other; the last for ever."""
    left = list(answers)
    return Request(lambda: Answer(left.pop(0) if len(left) > 1 else left[0]), "gs://bkt/a", part)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "TICK", 0.001)
    monkeypatch.setattr(patience, "_FIRST_PAUSE", 0.001)
    for state in ("_reached", "_allowed", "_denied"):
        monkeypatch.setattr(patience, state, type(getattr(patience, state))())
    monkeypatch.setattr(patience, "_SECOND_TRY", 0.01)
    monkeypatch.setattr(patience, "_TRY", 0.05)


def test_an_unanswered_request_is_sent_again() -> None:
    asked = request(None, b"content")
    assert asked.result().value == b"content"
    assert asked.tries == 2


@pytest.mark.parametrize("said", ["UNAVAILABLE: busy", "ABORTED: All 4 attempts failed"])
def test_a_busy_bucket_is_asked_again(said: str) -> None:
    assert request(ValueError(said), ValueError(said), b"content").result().value == b"content"


def test_a_short_answer_is_asked_for_again() -> None:
    asked = request(b"conte", b"content", part=slice(0, 7))
    assert asked.result().value == b"content"


def test_a_refusal_is_final_and_says_who_was_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "me.json").touch()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "me.json"))
    asked = request(ValueError("PERMISSION_DENIED: Forbidden [source locations='…']"))
    with pytest.raises(DatasetError) as caught:
        asked.result()
    assert str(caught.value) == (
        "gs://bkt/a cannot be read: PERMISSION_DENIED: Forbidden. The account in "
        f"{tmp_path}/me.json (GOOGLE_APPLICATION_CREDENTIALS) may not read it: use others, or let "
        "these read gs://bkt"
    )


DENIED = "PERMISSION_DENIED: Forbidden [http_response_code='403']"


def test_credentials_that_were_good_may_be_refused_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert request(b"content").result().value == b"content"
    with caplog.at_level(logging.WARNING, "jaxdata"):
        answers = (ValueError(DENIED), ValueError(DENIED), b"content")
        assert request(*answers).result().value == b"content"
    assert caplog.messages == [
        "gs://bkt/a is refused (PERMISSION_DENIED: Forbidden), but was not before: trying again "
        "for 60 s, in case credentials are being rotated"
    ]


@pytest.mark.parametrize(
    "said",
    ["UNAUTHENTICATED: 401", "INVALID_ARGUMENT: ExpiredToken: The provided token has expired"],
)
def test_a_refusal_that_lasts_is_final(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_DENIED_LIMIT", 0.05)
    assert request(b"content").result()
    asked = request(ValueError(said))
    with pytest.raises(DatasetError, match=f"^gs://bkt/a cannot be read: {said}. .* may not read"):
        asked.result()
    assert asked.tries > 2


def test_all_requests_share_the_time_in_which_they_may_be_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "_DENIED_LIMIT", 0.05)
    assert request(b"content").result()
    for _ in range(2):
        asked = request(ValueError(DENIED))
        with pytest.raises(DatasetError, match="may not read it"):
            asked.result()
    assert asked.tries == 1


def test_what_may_be_read_may_not_be_written() -> None:
    assert request(b"content").result()
    asked = Request(lambda: Answer(ValueError(DENIED)), "gs://bkt/a", done="written")
    with pytest.raises(Unwritten, match=r"^gs://bkt/a cannot be written: .* may not write it"):
        asked.result()
    assert asked.tries == 1


def test_what_is_written_is_sent_once() -> None:
    stop = threading.Event()
    asked = Request(lambda: Answer(None), "gs://bkt/a", done="written")
    threading.Timer(0.1, stop.set).start()
    with until(stop), pytest.raises(Stopped):
        asked.result()
    assert asked.tries == 1


@pytest.mark.parametrize(
    ("url", "variables", "said"),
    [
        ("gs://bkt/a", {}, "https://storage.googleapis.com has not answered for 0 s ("),
        (
            "s3://bkt/a",
            {},
            "https://bkt.s3.amazonaws.com (no AWS_ENDPOINT_URL_S3 names another) has not answered",
        ),
        (
            "s3://bkt/a",
            {"AWS_S3_ENDPOINT_URL": "http://minio:9000/"},
            "http://minio:9000 (AWS_S3_ENDPOINT_URL) has not answered for 0 s (ABORTED: no such "
            "host). Look whether that is the service, and whether this machine reaches it; "
            "JAXDATA_STORAGE_SECONDS sets how long to wait",
        ),
    ],
)
def test_a_service_that_never_answers_is_named(
    url: str, variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*ENDPOINTS, "TENSORSTORE_GCS_HTTP_URL", "JAXDATA_STORAGE_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(patience, "_FIRST_LIMIT", 0.05)
    with pytest.raises(DatasetError) as caught:
        Request(lambda: Answer(ValueError("ABORTED: no such host [curl_code='6']")), url).result()
    assert str(caught.value).startswith(f"{url} cannot be read: {said}")


def test_a_service_that_is_busy_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_FIRST_LIMIT", 0.0)
    busy = ValueError("ABORTED: All 3 retry attempts failed [http_response_code='503']")
    assert request(busy, busy, b"content").result().value == b"content"


def test_a_service_is_named_before_it_has_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "_SAY_FIRST", 0.03)
    monkeypatch.delenv("TENSORSTORE_GCS_HTTP_URL", raising=False)
    request(*[ValueError("UNAVAILABLE: no route")] * 6, b"content").result()
    said = "waiting for gs://bkt/a at https://storage.googleapis.com since 0 s (UNAVAILABLE: no"
    assert caplog.text.count(said) == 1


def test_an_outage_ends_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXDATA_STORAGE_SECONDS", "0.2")
    with pytest.raises(DatasetError, match=r"gs://bkt/a cannot be read for 0 s \(no answer"):
        request(None).result()
    monkeypatch.setenv("JAXDATA_STORAGE_SECONDS", "soon")
    with pytest.raises(InputError, match="JAXDATA_STORAGE_SECONDS='soon': expected a number"):
        request(None).result()


def test_a_stall_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(patience, "_SAY", 0.03)
    monkeypatch.setattr(patience, "_reached", {"gs://bkt"})
    with caplog.at_level(logging.WARNING, "jaxdata"):
        request(*[ValueError("UNAVAILABLE: 503")] * 6, b"content").result()
    assert "waiting for gs://bkt/a since 0 s (UNAVAILABLE: 503)" in caplog.messages


def test_who_waits_in_vain_stops() -> None:
    stop = threading.Event()
    stop.set()
    with until(stop), pytest.raises(Stopped):
        request(None).result()
