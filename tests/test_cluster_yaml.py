"""`cluster.yaml`: what Ray's launcher would make of it, without starting anything."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

CLUSTER = Path(__file__).parent.parent / "cluster.yaml"
SECRET_KEY = re.compile(r"secret|password|credential|access_key|private_key|api_?key|(?<!auth_)token", re.IGNORECASE)
SECRET_VALUE = re.compile(
    r"AKIA[0-9A-Z]{16}|hf_\w{20,}|BEGIN [A-Z ]*PRIVATE KEY|AUTH_TOKEN=|AWS_\w+=|[0-9a-f]{32}", re.IGNORECASE
)


@pytest.fixture
def cluster() -> Any:
    return yaml.safe_load(CLUSTER.read_text())


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}/{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, str(value)


def test_rays_launcher_accepts_it_and_refuses_a_misspelt_key(cluster: Any) -> None:
    prepared = prepare_config(copy.deepcopy(cluster))
    validate_config(prepared)
    assert set(prepared["available_node_types"]) == {"head", "cpu", "gpu"}
    cluster["available_node_types"]["gpu"]["min_worker"] = 1
    with pytest.raises(Exception, match="min_worker"):
        validate_config(prepare_config(cluster))


def test_it_holds_no_secret(cluster: Any) -> None:
    for key, _ in leaves(cluster):
        assert not SECRET_KEY.search(key), key
    assert not SECRET_VALUE.search(CLUSTER.read_text())
    assert SECRET_KEY.search("/provider/aws_secret_access_key") and SECRET_VALUE.search("export RAY_AUTH_TOKEN=1")


def test_every_node_asks_for_the_token_and_the_dashboard_stays_on_loopback(cluster: Any) -> None:
    starts = [
        command
        for name in ("head_start_ray_commands", "worker_start_ray_commands")
        for command in cluster[name]
        if "ray start" in command
    ]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token ray start" in command for command in starts)
    hosts = re.findall(r"--dashboard-host[= ](\S+)", " ".join(starts))
    assert hosts == ["127.0.0.1"]
    assert cluster["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"


def test_the_head_runs_no_tasks_and_only_gpu_nodes_install_vllm(cluster: Any) -> None:
    nodes = cluster["available_node_types"]
    assert nodes[cluster["head_node_type"]]["resources"]["CPU"] == 0
    assert any("[gpu]" in command for command in nodes["gpu"]["worker_setup_commands"])
    assert not any("[gpu]" in command or "vllm" in command for command in cluster["setup_commands"])


def test_nodes_run_the_pinned_ray(cluster: Any) -> None:
    pinned = re.search(r'ray\[[\w,]+\]==([\d.]+)"', (CLUSTER.parent / "pyproject.toml").read_text())
    assert pinned is not None
    images = [value for _, value in leaves(cluster) if value.startswith("rayproject/ray:")]
    assert len(images) == 2
    assert all(image.startswith(f"rayproject/ray:{pinned[1]}-py311-") for image in images)
