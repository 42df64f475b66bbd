"""A promise: one result that comes later, for threads that wait and for callbacks that are told."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Promise(Generic[T]):
    """One result or one exception, set once. For use from any number of threads.

    It costs one lock that is taken and freed, and imports nothing but `threading`.
    """

    __slots__ = ("_error", "_guard", "_is_done", "_latch", "_told", "_value")

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._latch.acquire()
        self._guard = threading.Lock()
        self._is_done = False
        self._value: T
        self._error: BaseException | None = None
        self._told: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Whether there is a result, or an exception."""
        return self._is_done

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until it is done, at most `timeout_s`; whether it is. A signal's exception gets through."""
        if not self._is_done and self._latch.acquire(timeout=-1 if timeout_s is None else max(0, timeout_s)):
            # For the next one who waits.
            self._latch.release()
        return self._is_done

    def result(self) -> T:
        """The result, blocking until there is one; raises the exception that was set instead."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def add_done_callback(self, told: Callable[[], None]) -> None:
        """Call `told` once it is done, on the thread that set it; at once where it is done already."""
        with self._guard:
            if not self._is_done:
                self._told.append(told)
                return
        told()

    def set_result(self, value: T) -> None:
        """Fulfil it. Once, by its owner."""
        assert not self._is_done, "a promise is fulfilled once"
        self._value = value
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        """Let it fail. Once, by its owner."""
        assert not self._is_done, "a promise is fulfilled once"
        self._error = error
        self._settle()

    def _settle(self) -> None:
        with self._guard:
            self._is_done = True
            told, self._told = self._told, []
        self._latch.release()
        for each in told:
            each()
