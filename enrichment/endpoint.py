"""A server that someone already runs, as an engine: any that speaks OpenAI's completions, vLLM's own among them.

Prompts go to `/completions` as token ids, never as text or chat messages: only so can no document's text become a control
token, and only so is the prompt the one that the context's key was made of. A server that takes chat messages alone is not
supported, and `check` says so. The API key comes from the environment (`SITUATE_API_KEY`, else `OPENAI_API_KEY`), never from
the configuration. This is the only file that knows the `openai` package; retries and their waits are its client's.

Unlike vLLM in our own process, a server need not count cached prompt tokens (vLLM's does with
`--enable-prompt-tokens-details`), nor serve urgent requests first (`--scheduling-policy priority`; without, vLLM's takes the
field and does nothing), and nothing here knows the size of its prefix blocks: what the accounts call block rounding is then
an estimate.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enrichment.engine import Capacity, Completion, ModelOptions, PromptRefusedError, Sampling, never
from enrichment.errors import ConfigError, OperationError, SituateError

# The client waits 0.5, 1, 2, 4, then 8 seconds, or as long as the server asks: ten retries are a minute, enough for a
# restart behind a load balancer. A run that ends all the same loses nothing that it paid for.
RETRIES = 10
# One answer, from its place in the server's queue to its last token: seconds on a GPU, minutes where a CPU reads long
# documents for many at once. A request that is given up is computed again, so this is generous.
TIMEOUT_S = 600.0
# Before a run somebody waits for the check: a minute for one token of a server that others keep busy, and one more try.
CHECK_RETRIES, CHECK_TIMEOUT_S = 1, 60.0
CONNECT_TIMEOUT_S = 5.0
# Where the server knows no repetition penalty, a second attempt uses OpenAI's own field, in the middle of the 0.1 to 1 that
# its documentation advises: enough that the second answer differs from the first.
RETRY_FREQUENCY_PENALTY = 0.5

_KEYS = ("SITUATE_API_KEY", "OPENAI_API_KEY")
_PROBE = [1, 2, 3]  # in every vocabulary
_EXTRA_FIELDS: Mapping[str, float] = {"repetition_penalty": 1.1, "priority": -1}  # beyond OpenAI's own
_REFUSED = (400, 413, 422)  # malformed, too large, not processable: about this request, not about the server
_REASON_LETTERS = 200  # of what a server says about a refused prompt: some repeat the prompt


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the server lists it; vLLM also gives how many tokens it takes."""

    id: str
    max_model_len: int | None = None


def check(options: ModelOptions) -> ServedModel:
    """The model that the server offers, which has answered a prompt of token ids. Raises ConfigError, one sentence."""
    client = _connect(options, "OpenAI", CHECK_RETRIES, CHECK_TIMEOUT_S)
    served = _find(client, options, ConfigError)
    length = served.max_model_len
    if length is not None and length < options.max_model_len:
        raise ConfigError(
            f"model.max_model_len is {options.max_model_len}, but model.endpoint {options.endpoint} serves {served.id} with"
            f" {length} tokens; lower it, or start the server with a longer --max-model-len"
        )
    with _sentences(options, ConfigError, "/completions"):
        if not _takes(client, served, {}):
            raise ConfigError(
                f"model.endpoint {options.endpoint} takes no prompts of token ids on /completions; a server that only takes"
                " chat messages or text is not supported, use one that takes them, such as vLLM's"
            )
    return served


def fingerprint(served: ServedModel, revision: str | None) -> str:
    """What a served model is, as far as a client can know: not where it is served, so that a server may move."""
    return hashlib.sha256(json.dumps(["endpoint", served.id, revision]).encode()).hexdigest()[:32]


class EndpointEngine:
    """Honours the Engine Protocol. At its start it asks which of the fields beyond OpenAI's the server takes.

    `reports_cached` is whether an answer so far counted cached prompt tokens; until then they are given as 0.
    """

    def __init__(self, options: ModelOptions) -> None:
        self.reports_cached = False
        self._options = options
        client = _connect(options, "OpenAI", RETRIES, TIMEOUT_S)
        self.served = _find(client, options, OperationError)
        with _sentences(options, OperationError, "/completions"):
            self._fields = _extra_fields(client, self.served)
        self._client = _connect(options, "AsyncOpenAI", RETRIES, TIMEOUT_S)
        self.capacity = Capacity(None, options.concurrency)
        self.preemptions = 0  # the server's own affair

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, enough: Callable[[str], bool] = never
    ) -> Completion:
        """As the Protocol's; `enough` is not asked: an answer comes whole, and ends at a line break at the latest."""
        import openai

        with _sentences(self._options, OperationError, "/completions"):
            try:
                answer = await self._client.completions.create(
                    model=self.served.id,
                    prompt=list(prompt),
                    max_tokens=sampling.max_tokens,
                    temperature=0.0,
                    stop=["\n"],
                    extra_body=self._extra_body(sampling),
                )
            except openai.APIStatusError as error:
                if error.status_code not in _REFUSED:
                    raise
                raise PromptRefusedError(" ".join(error.message.split())[:_REASON_LETTERS]) from error
            return self._completion(answer, len(prompt))

    def close(self) -> None:
        """Nothing to release: the model is somebody else's, and the connections belong to the caller's event loop."""

    def _extra_body(self, sampling: Sampling) -> dict[str, float]:
        body: dict[str, float] = {}
        if "repetition_penalty" in self._fields:
            body["repetition_penalty"] = sampling.repetition_penalty
        elif sampling.urgent:
            body["frequency_penalty"] = RETRY_FREQUENCY_PENALTY
        if sampling.urgent and "priority" in self._fields:
            body["priority"] = -1
        return body

    def _completion(self, answer: Any, num_tokens: int) -> Completion:
        choices = getattr(answer, "choices", None)  # a page of a proxy comes as a string
        if not choices:
            raise OperationError(f"model.endpoint {self._options.endpoint} answered without a completion; see its log")
        usage = answer.usage
        details = getattr(usage, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None)
        self.reports_cached = self.reports_cached or cached is not None
        return Completion(
            text=choices[0].text or "",
            finish_reason=choices[0].finish_reason or "",
            prompt_tokens=num_tokens,
            cached_tokens=cached or 0,
            output_tokens=usage.completion_tokens if usage else 0,
        )


def _connect(options: ModelOptions, kind: str, retries: int, timeout_s: float) -> Any:
    try:
        import openai
    except ImportError as error:
        raise ConfigError("model.endpoint needs the package openai; run: pip install 'situate[endpoint]'") from error
    return getattr(openai, kind)(
        base_url=options.endpoint,
        api_key=next((os.environ[name] for name in _KEYS if os.environ.get(name)), "none"),
        max_retries=retries,
        timeout=openai.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
    )


def _find(client: Any, options: ModelOptions, kind: type[SituateError]) -> ServedModel:
    """`served_name`, else the only model that is served, else `name`. Raises ConfigError where that is not served."""
    with _sentences(options, kind, "/models"):
        # The client's own `models.list` breaks on an answer that is no JSON, such as a proxy's page.
        answer = client.get("/models", cast_to=object)
    listed = (answer.get("data") or []) if isinstance(answer, dict) else []
    served = {
        entry["id"]: ServedModel(entry["id"], entry.get("max_model_len"))
        for entry in listed
        if isinstance(entry, dict) and "id" in entry
    }
    wanted = options.served_name or (next(iter(served)) if len(served) == 1 else options.name)
    if wanted not in served:
        raise ConfigError(
            f"model.endpoint {options.endpoint} does not serve {wanted} but {', '.join(sorted(served)) or 'no model'};"
            " set model.served_name to what it serves"
        )
    return served[wanted]


def _extra_fields(client: Any, served: ServedModel) -> frozenset[str]:
    """Which fields the server takes: all in one request, and only if it is refused, one at a time."""
    if _takes(client, served, _EXTRA_FIELDS):
        return frozenset(_EXTRA_FIELDS)
    return frozenset(name for name, value in _EXTRA_FIELDS.items() if _takes(client, served, {name: value}))


def _takes(client: Any, served: ServedModel, fields: Mapping[str, float]) -> bool:
    import openai

    try:
        client.completions.create(model=served.id, prompt=_PROBE, max_tokens=1, temperature=0.0, extra_body=fields)
    except (openai.BadRequestError, openai.UnprocessableEntityError):
        return False
    return True


@contextlib.contextmanager
def _sentences(options: ModelOptions, kind: type[SituateError], path: str) -> Iterator[None]:
    """What the client raises, as one sentence of `kind`: never with the server's words, which may repeat the key."""
    import openai

    where = f"model.endpoint {options.endpoint}"
    try:
        yield
    except openai.APIStatusError as error:
        status = error.status_code
        remedies = {
            401: f"set {_KEYS[0]} (or {_KEYS[1]}) to its key",
            403: f"set {_KEYS[0]} (or {_KEYS[1]}) to a key that may use the model",
            404: f"see that the address is right (most end in /v1) and that the key in {_KEYS[0]} may see the model",
        }
        if path == "/completions":
            remedies |= dict.fromkeys((404, 405, 501), _NO_COMPLETIONS)
        raise kind(
            f"{where} answers {status} on {path}; {remedies.get(status, 'the log of the server says why')}"
        ) from error
    except openai.APITimeoutError as error:
        raise kind(
            f"{where} did not answer in time; lower model.concurrency, or see what else keeps it busy"
        ) from error
    except openai.APIConnectionError as error:
        raise kind(f"{where} cannot be reached; start the server, or correct the address") from error
    except (openai.OpenAIError, json.JSONDecodeError) as error:
        raise kind(f"{where} gives no answer of an OpenAI-compatible server on {path}; correct the address") from error


_NO_COMPLETIONS = (
    f"the model is no longer served, the key in {_KEYS[0]} may not see it, or the server only takes chat messages, which is"
    " not supported"
)
