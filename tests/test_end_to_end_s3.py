"""The main job with sources and corpus on a real S3 server of this machine: nothing but the URIs changes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexing.storage import open_storage
from jobs import cli


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket, with Ray started so that its workers see the same environment."""
    from moto.server import ThreadedMotoServer

    from jobs import flow

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import boto3

    boto3.client("s3").create_bucket(Bucket="situate")
    with flow.cluster(None):
        yield "s3://situate"
    server.stop()


@pytest.mark.ray
def test_the_job_on_s3(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SITUATE_CACHE", str(tmp_path / "cache"))
    sources = open_storage(f"{bucket}/sources")
    paragraph = "The depot answers within two days. " * 20
    for number in range(3):
        text = f"# Depot {number}\n\n## Hours\n\n{paragraph}\n\n## Number {number}\n\n{paragraph}\n"
        sources.put(f"depots/{number}.md", text.encode())
    record = {"id": "from-jsonl", "title": "A record", "text": "Zebras are kept at the third depot. " * 40}
    sources.put("more/records.jsonl", json.dumps(record).encode())
    config = tmp_path / "job.yaml"
    config.write_text(
        f"corpus: {bucket}/corpora/depots\ndocuments: {{uri: {bucket}/sources}}\n"
        "model: {name: fake}\nembedding: {name: fake}\n"
    )
    assert cli.main(["refresh", str(config), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["documents"]["total"], result["documents"]["quarantined"]) == (4, 0)
    assert cli.main(["search", f"{bucket}/corpora/depots", "where are zebras kept", "-k", "1", "--json"]) == 0
    passage = json.loads(capsys.readouterr().out)["passages"][0]
    assert passage["document_id"] == "from-jsonl"
    assert passage["text"] == record["text"][passage["start"] : passage["end"]]
    assert cli.main(["refresh", str(config), "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["published"]
