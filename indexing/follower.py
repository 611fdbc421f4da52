"""Keeps a served corpus at its newest snapshot: looks every so often, logs a swap and a refusal, never stops serving."""

import logging
import threading
from types import TracebackType

from enrichment.errors import SituateError
from indexing.metrics import Metrics
from indexing.serving import Corpus

logger = logging.getLogger(__name__)


class Follower:
    """A thread that calls `corpus.refresh()` every `every_s` seconds for as long as it is entered as a context."""

    def __init__(self, corpus: Corpus, every_s: float, metrics: Metrics) -> None:
        self._corpus, self._every_s, self._metrics = corpus, every_s, metrics
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self._refusal = ""

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()

    def look(self) -> None:
        """Take the newest snapshot if there is another; one line in the log for a swap, and for each new reason not to."""
        before = self._corpus.manifest.sequence
        try:
            swapped = self._corpus.refresh()
        except Exception as error:  # noqa: BLE001 - a follower that died would leave the corpus at its age, in silence
            self._metrics.refreshed("refused")
            refusal = str(error) if isinstance(error, SituateError) else f"{type(error).__name__}: {error}"
            if refusal != self._refusal:
                logger.warning("snapshot %d goes on answering: %s", before, refusal)
            self._refusal = refusal
            return
        self._refusal = ""
        self._metrics.refreshed("swapped" if swapped else "unchanged")
        if swapped:
            logger.info("snapshot %d answers in the place of %d", self._corpus.manifest.sequence, before)

    def _follow(self) -> None:
        while not self._stopped.wait(self._every_s):
            self.look()
