"""Waiting for a bucket: second tries, limits, words, and an end at once when nobody waits."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from jaxdata.background import Stopped, until
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.storage import patience
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


def request(*answers: Any, part: slice | None = None) -> Request:
    """A request that is answered so, one after the other; the last for ever."""
    left = list(answers)
    return Request(lambda: Answer(left.pop(0) if len(left) > 1 else left[0]), "gs://bkt/a", part)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_TICK", 0.001)
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


def test_a_refusal_is_final_and_says_who_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/keys/me.json")
    asked = request(ValueError("PERMISSION_DENIED: Forbidden [source locations='…']"))
    with pytest.raises(DatasetError) as caught:
        asked.result()
    assert str(caught.value) == (
        "gs://bkt/a cannot be read: PERMISSION_DENIED: Forbidden. The account in /keys/me.json "
        "(GOOGLE_APPLICATION_CREDENTIALS) may not read it: use others, or let these read gs://bkt"
    )


def test_an_outage_ends_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXDATA_STORAGE_SECONDS", "0.2")
    with pytest.raises(DatasetError, match=r"gs://bkt/a cannot be read for 0 s \(no answer"):
        request(None).result()
    monkeypatch.setenv("JAXDATA_STORAGE_SECONDS", "soon")
    with pytest.raises(InputError, match="JAXDATA_STORAGE_SECONDS='soon': expected a number"):
        request(None).result()


def test_a_stall_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(patience, "_SAY", 0.03)
    with caplog.at_level(logging.WARNING, "jaxdata"):
        request(*[ValueError("UNAVAILABLE: 503")] * 6, b"content").result()
    assert "waiting for gs://bkt/a since 0 s (UNAVAILABLE: 503)" in caplog.messages


def test_who_waits_in_vain_stops() -> None:
    stop = threading.Event()
    stop.set()
    with until(stop), pytest.raises(Stopped):
        request(None).result()
