"""Waiting for a bucket: second tries, limits, words, and an end at once when nobody waits."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.threads import (
    Stopped,
    Threads,
    check_stop,
    left_alone,
    pause,
    until,
    waited,
    within,
)
from jaxdata.storage import patience
from jaxdata.storage.contract import Unwritten
from jaxdata.storage.credentials import ENDPOINTS
from jaxdata.storage.patience import Failed, Request, Short


class Answer:
    """A future: a value, an error, or silence."""

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


BUSY = Failed("503 Service Unavailable", 503)


@pytest.mark.parametrize(
    ("answers", "part"),
    [
        ((None,), None),
        ((BUSY, BUSY), None),
        ((Failed("connection reset"), Failed("429 Slow Down", 429)), None),
        ((Short("5 bytes came, not 7"),) * 2, slice(0, 7)),
    ],
)
def test_what_may_pass_is_asked_again(answers: Any, part: slice | None) -> None:
    asked = request(*answers, b"content", part=part)
    assert asked.result().value == b"content"
    assert asked.tries == len(answers) + 1
    for failed, tries in ((Short("5 bytes came, not 7"), 3), (Failed("416 of 5 bytes", 416), 1)):
        short = request(failed, part=slice(0, 7))
        with pytest.raises(DatasetError, match="gs://bkt/a ends before byte 7"):
            short.result()
        assert short.tries == tries


def test_a_refusal_is_final_and_says_who_was_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "me.json").touch()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "me.json"))
    asked = request(Failed("403 Forbidden", 403))
    with pytest.raises(DatasetError) as caught:
        asked.result()
    assert str(caught.value) == (
        "gs://bkt/a cannot be read: 403 Forbidden. The account in "
        f"{tmp_path}/me.json (GOOGLE_APPLICATION_CREDENTIALS) may not read it: use others, or let "
        "these read gs://bkt"
    )


DENIED = Failed("403 Forbidden", 403)


@pytest.mark.parametrize(
    "denied",
    [
        DENIED,
        Failed("401 Unauthorized", 401),
        Failed("400 Bad Request: ExpiredToken: The provided token has expired", 400),
    ],
)
def test_what_was_allowed_may_be_refused_for_a_while_that_all_requests_share(
    denied: Failed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert request(b"content").result()
    assert request(denied, denied, b"content").result().value == b"content"
    short = denied.said
    assert caplog.messages == [
        f"gs://bkt/a is refused ({short}), but was not before: trying again for 60 s, in case "
        "credentials are being rotated"
    ]
    monkeypatch.setattr(patience, "_DENIED_LIMIT", 0.05)
    for most in (1_000, 1):
        asked = request(denied)
        with pytest.raises(DatasetError, match=f"^gs://bkt/a cannot be read: {short}. .* may not"):
            asked.result()
        assert asked.tries <= most
    asked = Request(lambda: Answer(DENIED), "gs://bkt/a", done="written")
    with pytest.raises(Unwritten, match=r"^gs://bkt/a cannot be written: .* may not write it"):
        asked.result()
    assert asked.tries == 1, "it was allowed to read"


@pytest.mark.parametrize(
    ("url", "variables", "said"),
    [
        ("gs://bkt/a", {}, "https://storage.googleapis.com has not answered for 0 s ("),
        ("s3://bkt/a", {}, "https://bkt.s3.amazonaws.com (no AWS_ENDPOINT_URL_S3 names another) "),
        (
            "s3://bkt/a",
            {"AWS_S3_ENDPOINT_URL": "http://minio:9000/"},
            "http://minio:9000 (AWS_S3_ENDPOINT_URL) has not answered for 0 s (no such "
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
        Request(lambda: Answer(Failed("no such host")), url).result()
    assert str(caught.value).startswith(f"{url} cannot be read: {said}")


@pytest.mark.parametrize("first", [True, False])
def test_a_stall_is_said_once_and_names_a_service_that_has_not_answered_yet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    monkeypatch.setattr(patience, "_SAY_FIRST" if first else "_SAY", 0.03)
    monkeypatch.setattr(patience, "_reached", set() if first else {"gs://bkt"})
    monkeypatch.delenv("TENSORSTORE_GCS_HTTP_URL", raising=False)
    request(*[Failed("no route")] * 6, b"content").result()
    at = " at https://storage.googleapis.com" if first else ""
    said = f"waiting for gs://bkt/a{at} since 0 s (no route)"
    assert caplog.messages.count(said) >= 1


def test_an_outage_ends_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXDATA_STORAGE_SECONDS", "0.2")
    with pytest.raises(DatasetError, match=r"gs://bkt/a cannot be read for 0 s \(no answer"):
        request(None).result()
    monkeypatch.setenv("JAXDATA_STORAGE_SECONDS", "soon")
    with pytest.raises(InputError, match="JAXDATA_STORAGE_SECONDS='soon': expected a number"):
        request(None).result()


@pytest.mark.parametrize(("done", "least"), [("written", 1), ("read", 2)])
def test_who_waits_in_vain_stops_and_what_is_written_is_sent_once(done: Any, least: int) -> None:
    stop, sent = threading.Event(), list[Answer]()

    def send() -> Answer:
        sent.append(Answer(None))
        if len(sent) == least:
            threading.Timer(0.1, stop.set).start()
        return sent[-1]

    with until(stop), pytest.raises(Stopped):
        Request(send, "gs://bkt/a", done=done).result()
    assert (len(sent) == 1) == (done == "written")


def test_calls_under_way_stop_and_others_are_not_begun() -> None:
    begun, ended = threading.Barrier(3), []

    def wait() -> None:
        begun.wait()
        try:
            pause(1e6)
        except Stopped:
            ended.append(threading.current_thread())

    with Threads(2) as threads:
        futures = [threads.submit(wait) for _ in range(5)]
        begun.wait()
    assert len(set(ended)) == 2
    assert [future.done() for future in futures] == [True, True, False, False, False]


def test_calls_are_taken_as_there_is_room_and_the_first_error_is_raised() -> None:
    taken: list[int] = []

    def calls() -> object:
        for number in range(50):
            taken.append(number)
            yield number, lambda: len(taken)

    with Threads(2) as threads:
        found = dict(threads.ended(calls()))  # type: ignore[arg-type]
        assert sorted(found) == list(range(50))
        assert all(there <= number + 8 for number, there in found.items())
        with pytest.raises(ZeroDivisionError):
            threads.map(lambda n: 1 // n, [2, 1, 0])
        assert threads.map(lambda n: -n, [1, 2]) == [-1, -2]


def test_a_wait_ends_with_its_limit_its_result_or_its_own_error() -> None:
    never: Future[None] = Future()
    with within(0.1), pytest.raises(Stopped):
        waited(never)
    late: Future[int] = Future()
    threading.Timer(0.1, late.set_result, [7]).start()
    assert waited(late) == 7
    check_stop()

    def fails() -> None:
        time.sleep(0.1)
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        waited(left_alone(fails))
