"""A retriever for LangChain over an open corpus: `pip install situate[langchain]`.

Query -> documents of original text, one per passage; what was generated is in their metadata only. Asynchronous calls run in
LangChain's threads. A refresh of the corpus between two calls, or during one, is the corpus's own affair.
"""

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from indexing.expansion import RUN_LENGTH, RUN_PENALTY, Expand, WindowBy
from indexing.search import Mode
from indexing.serving import Corpus

_FORWARDED = ("expand", "window", "window_by", "within_section", "run_penalty", "run_length", "budget")


class SituateRetriever(BaseRetriever):  # type: ignore[misc]
    """The passages of the `k` best chunks; the settings are those of `Corpus.search`."""

    corpus: Corpus
    k: int = 5
    mode: Mode = "hybrid"
    expand: Expand = "window"
    window: int = 0
    window_by: WindowBy = "chunks"
    within_section: bool = False
    run_penalty: float = RUN_PENALTY
    run_length: int = RUN_LENGTH
    budget: int | None = None

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        with self.corpus.using(self.mode) as snapshot:
            found = snapshot.search(query, self.k, self.mode, **{name: getattr(self, name) for name in _FORWARDED})
            about = {"snapshot": snapshot.manifest.sequence}
        return [Document(id=p.id, page_content=p.text, metadata={**p.metadata(), **about}) for p in found]
