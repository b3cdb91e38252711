"""The first Ctrl-C waits until what must not be torn is done, the second does not."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bray_core.process.held_interrupts import deliver_interrupt, held_interrupts


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Give back the handlers that were there."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    deliver = [signal.getsignal(number) for number in before]
    assert deliver == [signal.default_int_handler, signal.SIG_DFL], "they are as before"
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # a moment for the handler


def test_the_first_is_raised_where_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    done = []
    with held_interrupts():
        interrupt()
        done.append("trained")
    done.append("counted")
    with pytest.raises(KeyboardInterrupt):
        deliver_interrupt()
    deliver_interrupt()  # once
    assert done == ["trained", "counted"]
    said = "stopping after what is being trained on now; Ctrl-C once more stops at once, unsaved\n"
    assert capfd.readouterr().err == said


def test_a_terminal_that_closes_is_a_signal_to_end(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: seen.append(number))
    with held_interrupts():
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.01)
        assert seen == []
    deliver_interrupt()
    assert seen == [signal.SIGHUP]
    signal.signal(signal.SIGHUP, before)
    assert "stopping after" in capfd.readouterr().err


def test_a_second_one_does_not_wait() -> None:
    done = []

    def train() -> None:
        with held_interrupts():
            interrupt()
            done.append("first")
            interrupt()
            done.append("second")

    with pytest.raises(KeyboardInterrupt):
        train()
    assert done == ["first"]
    deliver_interrupt()


def test_it_says_whether_it_was_torn() -> None:
    """One that is raised in a wait between two steps tears nothing."""

    def torn_by(*calls: Callable[[], None]) -> bool:
        with contextlib.suppress(KeyboardInterrupt), held_interrupts() as held:
            for call in calls:
                call()
        return held.is_torn

    assert not torn_by(interrupt, deliver_interrupt)
    assert torn_by(interrupt, interrupt)
    assert not torn_by(interrupt)
    with pytest.raises(KeyboardInterrupt):
        deliver_interrupt()


def test_other_threads_raise_none_of_it() -> None:
    with held_interrupts():
        interrupt()
        thread = threading.Thread(target=deliver_interrupt)
        thread.start()
        thread.join()
        with pytest.raises(KeyboardInterrupt):
            deliver_interrupt()


def test_without_one_nothing_happens_and_what_was_not_taken_is_forgotten() -> None:
    with held_interrupts():
        interrupt()
    with held_interrupts():
        pass
    deliver_interrupt()
    with pytest.raises(ValueError, match="a fault"), held_interrupts():
        raise ValueError("a fault")


def test_it_reaches_the_handler_that_was_there_and_leaves_ignored_ones_alone() -> None:
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    with held_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert not seen
    deliver_interrupt()
    assert seen == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with held_interrupts():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_other_threads_change_nothing() -> None:
    seen = []

    def work() -> None:
        with held_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
