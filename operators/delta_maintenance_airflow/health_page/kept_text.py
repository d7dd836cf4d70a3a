"""A kept text that is made anew in the background, for readers who come often and wait little."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

FRESH_SECONDS = 15.0
"""For this time, the assessments are not looked at again."""
OLDEST_SECONDS = 300.0
"""A text that is older is not served: the assessments could not be read meanwhile."""
PATIENCE_SECONDS = 8.0
"""How long a request waits for the first text. Prometheus waits for 10 seconds by default."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of metrics, also compressed, which takes longer than to send it."""

    plain: bytes
    compressed: bytes
    made_at: float


class KeptText:
    """The last text. Safe to share between threads.

    Only the first reader waits for a text, and those after a failure, who get its error. The others
    get the last one as it is, and call `renew` when they have sent it.
    """

    def __init__(
        self, make: Callable[[], bytes], *, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._text: Text | None = None
        self._running: Future[Text] | None = None

    def get(self) -> Text:
        """Returns a text of the last minutes. Raises the errors of `make`, and `TimeoutError`."""
        with self._lock:
            text = self._text
            if text is not None and self._elapsed() - text.made_at < OLDEST_SECONDS:
                return text
            running = self._begun()
        return running.result(PATIENCE_SECONDS)

    def renew(self) -> None:
        """Begins to make another text, unless the last one is fresh."""
        with self._lock:
            text = self._text
            if text is None or self._elapsed() - text.made_at >= FRESH_SECONDS:
                self._begun()

    def _begun(self) -> Future[Text]:
        if self._running is None:
            self._running = Future()
            # A store that does not answer must not keep the process from ending.
            threading.Thread(target=self._run, args=[self._running], daemon=True).start()
        return self._running

    def _run(self, running: Future[Text]) -> None:
        made_at = self._elapsed()
        try:
            plain = self._make()
            text = Text(plain, gzip.compress(plain, compresslevel=5, mtime=0), made_at)
        except BaseException as error:
            with self._lock:
                self._text = self._running = None
            running.set_exception(error)
        else:
            with self._lock:
                self._text, self._running = text, None
            running.set_result(text)
