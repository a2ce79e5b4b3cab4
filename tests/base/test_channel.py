"""Messages between processes: any size, in order, and nobody waits for a reader."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base import processes as channel
from jaxdata.base.processes import Channel
from tests.leftovers import descriptors

sizes = st.sampled_from([0, 1, 2**15 - 30, 2**15, 2**16 - 30, 2**16 - 1, 2**16, 2**16 + 1, 2**20])
messages = st.lists(st.one_of(st.builds(bytes, sizes), st.integers(), st.none()), max_size=20)


@settings(deadline=None)
@given(messages, st.booleans())
def test_messages_come_as_they_were_sent(sent: list[Any], in_memory: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not in_memory:  # as on a system without memfd_create
            patch.delattr(channel.os, "memfd_create", raising=False)
        here, there = Channel.pair()
        with here, there:
            for message in sent:
                here.send(message)
            there.send("and back")
            assert [there.recv() for _ in sent] == sent
            assert here.recv() == "and back"


@pytest.mark.parametrize("size", [1, 2**15, 2**16 - 200, 10**7])
def test_a_sender_waits_for_no_reader(size: int) -> None:
    here, there = Channel.pair()
    messages = [bytes(size)] * (64 if size < 10**6 else 3)

    def send_all() -> None:
        for message in messages:
            here.send(message)

    with here, there:
        sender = Thread(target=send_all, daemon=True)
        sender.start()
        sender.join(60)
        assert not sender.is_alive(), "the sender waits for somebody to read"
        assert [there.recv() for _ in messages] == messages


def test_no_handle_is_left_behind() -> None:
    before = descriptors()
    here, there = Channel.pair()
    with here, there:
        for _ in range(50):
            here.send(bytes(10**6))
            there.recv()
    assert descriptors() <= before


def test_the_other_end_is_gone() -> None:
    here, there = Channel.pair()
    there.close()
    with here:
        with pytest.raises(BrokenPipeError):
            here.send(bytes(10**6))
        with pytest.raises(EOFError):
            here.recv()
