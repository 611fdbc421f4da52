"""A retriever for LlamaIndex over an open corpus: `pip install situate[llama-index]`.

Query -> nodes of original text, one per passage; what was generated is in their metadata only, and neither an embedder nor a
language model is shown it. A refresh of the corpus between two calls, or during one, is the corpus's own affair.
"""

import asyncio
from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode

from indexing.passages import Passage
from indexing.search import Mode
from indexing.serving import Corpus

_SHOWN = {"document_id", "title"}


class SituateRetriever(BaseRetriever):  # type: ignore[misc]
    """The passages of the `k` best chunks; the settings are those of `Corpus.search`."""

    def __init__(self, corpus: Corpus, k: int = 5, mode: Mode = "hybrid", **settings: Any) -> None:
        super().__init__()
        self._corpus, self._k, self._mode, self._settings = corpus, k, mode, settings

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with self._corpus.using(self._mode) as snapshot:
            found = snapshot.search(query_bundle.query_str, self._k, self._mode, **self._settings)
            sequence = snapshot.manifest.sequence
        return [NodeWithScore(node=_node(passage, sequence), score=passage.score) for passage in found]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _node(passage: Passage, sequence: int) -> TextNode:
    metadata = {**passage.metadata(), "snapshot": sequence}
    hidden = [name for name in metadata if name not in _SHOWN]
    return TextNode(
        id_=passage.id,
        text=passage.text,
        metadata=metadata,
        excluded_llm_metadata_keys=hidden,
        excluded_embed_metadata_keys=hidden,
        start_char_idx=passage.start,
        end_char_idx=passage.end,
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=passage.document_id)},
    )
