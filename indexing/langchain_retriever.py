"""A retriever for LangChain over an open corpus: `pip install situate[langchain]`.

Query -> documents of original text, one per passage; what was generated is in their metadata only. Asynchronous calls run in
LangChain's threads. A refresh of the corpus between two calls, or during one, is the corpus's own affair.
"""

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from indexing.search import Mode
from indexing.serving import Corpus


class SituateRetriever(BaseRetriever):  # type: ignore[misc]
    """The passages of the `k` best chunks; the settings are those of `Corpus.search`."""

    corpus: Corpus
    k: int = 5
    mode: Mode = "hybrid"
    window: int = 0
    within_section: bool = False
    budget: int | None = None

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        with self.corpus.using(self.mode) as snapshot:
            how = {"window": self.window, "within_section": self.within_section, "budget": self.budget}
            found = snapshot.search(query, self.k, self.mode, **how)
            about = {"snapshot": snapshot.manifest.sequence}
        return [Document(id=p.id, page_content=p.text, metadata={**p.metadata(), **about}) for p in found]
