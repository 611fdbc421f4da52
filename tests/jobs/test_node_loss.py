"""Losing a worker and a node in the middle of a run costs time only (P11): two Ray nodes on one machine."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from indexing import manifest
from indexing.storage import open_storage
from jobs import config, refresh
from jobs.progress import Progress

pytestmark = pytest.mark.ray
FAULTS = Path(__file__).parent.parent / "faults"
DOCUMENTS, SECTIONS = 24, 6


class Saboteur(Progress):
    """Kills a worker when the first contexts are there, and a whole node when it is next told of the counts."""

    def __init__(self, cluster: Any, node: Any) -> None:
        super().__init__(show=False)
        self._cluster, self._node = cluster, node
        self.killed: list[str] = []

    def counts(self, counts: Mapping[str, int]) -> None:
        generated = counts.get("generated", 0)
        if generated and not self.killed:
            own = psutil.Process().children(recursive=True)
            victim = next(process for process in own if "RelayedEnrich" in process.name() + " ".join(process.cmdline()))
            self.killed.append(f"worker after {generated}")
            victim.kill()
        elif generated and len(self.killed) == 1:
            self.killed.append(f"node after {generated}")
            self._cluster.remove_node(self._node, allow_graceful=False)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("FAULTS", json.dumps({"slowly": "slow"}))
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    node = found.add_node(num_cpus=2)
    yield found, node
    found.shutdown()


def test_losing_a_worker_and_a_node_changes_nothing_but_time(cluster: tuple[Any, Any], tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(DOCUMENTS):
        sections = (f"# Part {n}\n\nRule {n} of {number} is read slowly by all.\n\n" for n in range(SECTIONS))
        (folder / f"{number:02}.md").write_text("".join(sections))
    given = {
        "documents": {"uri": str(folder)},
        "embedding": {"name": "fake"},
        "split": {"by": "sentences", "size": 1},
        "model": {"name": "fake", "replicas": 2, "max_model_len": 2048},
    }
    lossy = config.parse({**given, "corpus": str(tmp_path / "lossy")})
    saboteur = Saboteur(*cluster)
    result = refresh.refresh(lossy, saboteur, cluster[0].address)
    assert len(saboteur.killed) == 2, saboteur.killed
    assert result.documents["indexed"] == DOCUMENTS and result.documents["quarantined"] == 0
    assert result.chunks["ok"] == result.chunks["total"] >= DOCUMENTS * SECTIONS

    calm = config.parse({**given, "corpus": str(tmp_path / "calm"), "model": {**given["model"], "replicas": 1}})
    refresh.refresh(calm, Progress(show=False), cluster[0].address)
    digests = [
        [segment.digest for segment in found.segments]
        for corpus in (lossy.corpus, calm.corpus)
        if (found := manifest.latest(open_storage(corpus))) is not None
    ]
    assert digests[0] == digests[1]
