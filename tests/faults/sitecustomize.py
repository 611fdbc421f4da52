"""Faults for processes that tests start: with this directory on PYTHONPATH, words in a document make an engine fail.

`FAULTS` in the environment is JSON: word -> what happens when a prompt with it reaches the engine. `die`: the engine is gone
until it is started again; `exit`: the whole process is gone; `hang`: no answer ever; `slow`: each answer takes two seconds;
`kill`: vLLM's own engine process is killed. The word LOAD stands for the load of a model, whose only fault is `exit`. Only the
engines of the package are touched.
"""

import asyncio
import json
import os
import signal
from typing import Any

FAULTS: dict[str, str] = json.loads(os.environ.get("FAULTS", "{}"))
LOAD = "LOAD"


def _break_fake_engine() -> None:
    from enrichment.engine import EngineDiedError
    from enrichment.fake_engine import FakeEngine
    from enrichment.tokens import FakeTokenizer

    if LOAD in FAULTS:
        FakeEngine.__init__ = lambda *given: os._exit(1)  # type: ignore[method-assign]
    faults = {int(FakeTokenizer().encode(word).ids[0]): fault for word, fault in FAULTS.items()}
    answer = FakeEngine.generate

    async def generate(self: Any, prompt: Any, *rest: Any) -> Any:
        found = {faults[token] for token in faults.keys() & set(prompt)}
        if "exit" in found:
            os._exit(1)
        if "hang" in found:
            await asyncio.sleep(3600)
        if "slow" in found:
            await asyncio.sleep(2.0)
        if "die" in found:
            self.dead = True
        if getattr(self, "dead", False):
            raise EngineDiedError("a fault was asked for")
        return await answer(self, prompt, *rest)

    FakeEngine.generate = generate  # type: ignore[method-assign]


def _break_vllm_engine() -> None:
    from enrichment.vllm_engine import VllmEngine

    words = [word for word, fault in FAULTS.items() if fault == "kill"]
    answer = VllmEngine.generate

    async def generate(self: Any, prompt: Any, *rest: Any) -> Any:
        text = self._engine.get_tokenizer().decode(list(prompt))
        if any(word in text for word in words):
            for pid in self.pids:
                os.kill(pid, signal.SIGKILL)
        return await answer(self, prompt, *rest)

    VllmEngine.generate = generate  # type: ignore[method-assign]


if FAULTS:
    _break_fake_engine()
    _break_vllm_engine()
