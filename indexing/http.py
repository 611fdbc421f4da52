"""The HTTP service over an open corpus: JSON for programs, and one page for people. Only reads.

Every question runs in one of a few threads, every input has a limit, every failure is one sentence: 404 for what is not there,
422 for what was asked wrongly, 503 with Retry-After for too much at once or a store that does not answer.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from enrichment.errors import ConfigError, OperationError
from indexing import answers
from indexing.answers import Problem
from indexing.expansion import RUN_LENGTH, RUN_PENALTY, Expand, Expansion, WindowBy
from indexing.filters import Filter, parse_pairs
from indexing.fusion import MAX_WEIGHT, Fusion, FusionMethod, options_of
from indexing.gate import Gate
from indexing.metrics import CONTENT_TYPE, Metrics
from indexing.search import Mode
from indexing.serving import Corpus
from indexing.workers import OverloadError, Workers

PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MAX_ID = 8192  # code points; an id is as long as its source made it, a request line has 64 KiB
MAX_BUDGET = 1_000_000  # code points
_WIDEST: dict[WindowBy, int] = {"chunks": 50, "characters": 20_000, "tokens": 4000}  # each some 20,000 code points
_AS_THEY_ARE = {"k", "mode", "expand", "window", "window_by", "run_penalty", "run_length"}
_NOT_THERE = {"/document", "/chunk", "/chunks"}  # routes whose ConfigError is about what the snapshot holds


_EXPAND = "what a hit becomes: its window, the smallest section around it, or a run of relevant chunks"
_WINDOW = f"that many on each side of a hit; at most {', '.join(f'{most} {name}' for name, most in _WIDEST.items())}"
_BUDGET = (
    f"most code points of text in all; for parents {MAX_BUDGET} if none is given, since one may be a whole document"
)


def _limited(window: int, others: ValidationInfo) -> int:
    by = others.data.get("window_by", "characters")  # absent if it is none that there is: that is then what is said
    if window > _WIDEST[by]:
        raise PydanticCustomError("window", "Input should be at most {most} {by}", {"most": _WIDEST[by], "by": by})
    return window


Id = Annotated[str, Field(min_length=1, max_length=_MAX_ID, description="a document's id, slashes and all")]
Condition = Annotated[str, Field(max_length=2000)]
Weight = Annotated[float | None, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False, description="in the fusion")]
WindowedBy = Annotated[WindowBy, Field(description="what `window` counts; tokens are the embedder's")]
Window = Annotated[int, Field(ge=0, description=_WINDOW), AfterValidator(_limited)]
Within = Annotated[Literal["section"] | None, Field(description="stop windows at headings")]


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SearchParameters(_Parameters):
    """As the options of `situate search`."""

    q: str = Field(min_length=1, max_length=2000, pattern=r"\S", description="a question or some words")
    k: int = Field(5, ge=1, le=100, description="hits, before neighbours merge")
    mode: Mode = "hybrid"
    expand: Expand = Field("window", description=_EXPAND)
    window_by: WindowedBy = "chunks"
    window: Window = 0
    within: Within = None
    run_penalty: float = Field(RUN_PENALTY, ge=0, le=1, description="what each chunk of a run costs it; of expand=run")
    run_length: int = Field(RUN_LENGTH, ge=1, le=100, description="most chunks of a run; of expand=run")
    budget: int | None = Field(None, ge=1, le=MAX_BUDGET, description=_BUDGET)
    where: list[Condition] = Field([], max_length=20, description="key=value of the metadata; all given must hold")
    title: str | None = Field(None, max_length=1000, description="a part of the title, in any case of letters")
    id_prefix: str | None = Field(None, max_length=_MAX_ID, description="how the document's id begins")
    fusion: FusionMethod | None = Field(None, description="of hybrid searches; else as the corpus is configured")
    dense_weight: Weight = None
    lexical_weight: Weight = None
    document_weight: Weight = None

    def options(self, configured: Fusion) -> dict[str, Any]:
        """What `Snapshot.search` takes besides the question. Raises ConfigError for weights that say nothing here."""
        return {
            **self.model_dump(include=_AS_THEY_ARE),
            "budget": MAX_BUDGET if self.budget is None and self.expand == "parent" else self.budget,
            "within_section": self.within is not None,
            "filters": Filter(parse_pairs(self.where), self.title, self.id_prefix),
            "fusion": configured.asked(
                self.mode, self.fusion, self.dense_weight, self.lexical_weight, self.document_weight
            ),
        }


class DocumentParameters(_Parameters):
    """Which document, and whether its original is wanted."""

    id: Id
    text: bool = False


class ChunkParameters(_Parameters):
    """Which chunk, and how much of its document around it."""

    id: Id
    index: int = Field(ge=0, le=2**31 - 1, description="chunks count from 0")
    window_by: WindowedBy = "chunks"
    window: Window = 0
    within: Within = None


class ChunksParameters(_Parameters):
    """Which part of a document's chunks."""

    id: Id
    first: int = Field(0, ge=0, le=2**31 - 1)
    count: int = Field(100, ge=1, le=1000)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is worked on at once. Lexical searches run one after the other whatever `threads` is (see indexing/jvm.py)."""

    threads: int = 8
    queue: int = 64
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Service:
    """The application and what whoever runs it needs beside it."""

    app: FastAPI
    metrics: Metrics
    workers: Workers


def service(corpus: Corpus, token: str | None = None, limits: Limits = Limits()) -> Service:  # noqa: B008 - frozen
    """The service over a corpus. With a token, everything but the page's files and /health asks for it."""
    workers = Workers(limits.threads, limits.queue, limits.timeout_s)
    metrics = Metrics(corpus, workers)
    app = FastAPI(
        title="situate",
        description="Search over documents whose chunks still mean something on their own. Text is original text; "
        "`context` is what a model wrote and can be wrong.",
        docs_url=None,  # FastAPI's pages fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses={code: {"model": Problem} for code in (401, 421, 422, 503)},
    )
    _add_questions(app, corpus, workers)
    _add_state(app, workers, metrics)
    files = _add_page(app)
    for kind in (HTTPException, RequestValidationError, ConfigError, OperationError):
        app.add_exception_handler(kind, _problem)
    routes = {path for route in app.routes if (path := getattr(route, "path", None))}
    app.add_middleware(Gate, token=token, public={*files, "/health"}, routes=routes, metrics=metrics)
    return Service(app, metrics, workers)


def _add_questions(app: FastAPI, corpus: Corpus, workers: Workers) -> None:
    missing: dict[int | str, dict[str, Any]] = {404: {"model": Problem}}

    async def answer(work: Callable[[], Any]) -> Response:
        return await workers.run(lambda: JSONResponse(asdict(work())))  # encoded in the thread as well

    @app.get("/search", response_model=answers.SearchAnswer)
    async def search(asked: Annotated[SearchParameters, Query()]) -> Response:
        """The best passages for a question."""
        options = asked.options(options_of(corpus.manifest.config).fused_by)

        def find() -> answers.SearchAnswer:
            with corpus.using(asked.mode) as snapshot:
                passages = tuple(snapshot.search(asked.q, **options))
                return answers.SearchAnswer(snapshot.manifest.sequence, options["fusion"], passages)

        return await answer(find)

    @app.get("/document", response_model=answers.DocumentAnswer, responses=missing)
    async def document(asked: Annotated[DocumentParameters, Query()]) -> Response:
        """A document's record, with its original on demand."""
        return await answer(lambda: answers.document(corpus, asked.id, asked.text))

    @app.get("/chunk", response_model=answers.ChunkAnswer, responses=missing)
    async def chunk(asked: Annotated[ChunkParameters, Query()]) -> Response:
        """A chunk before and after, in its window."""
        how = Expansion("window", asked.window, asked.window_by, asked.within is not None)
        return await answer(lambda: answers.chunk(corpus, asked.id, asked.index, how))

    @app.get("/chunks", response_model=answers.ChunksAnswer, responses=missing)
    async def chunks(asked: Annotated[ChunksParameters, Query()]) -> Response:
        """A document's chunks, in order."""
        return await answer(lambda: answers.chunks(corpus, asked.id, asked.first, asked.count))

    @app.get("/snapshot", response_model=answers.SnapshotAnswer)
    async def snapshot() -> Response:
        """The snapshot that answers: when and of what it was made."""
        return await answer(lambda: answers.snapshot(corpus))


def _add_state(app: FastAPI, workers: Workers, metrics: Metrics) -> None:
    @app.get("/health", response_model=answers.HealthAnswer, responses={503: {"model": answers.HealthAnswer}})
    async def health() -> Response:
        """200 while questions can be answered. Needs no token and touches no index."""
        status = "stuck" if workers.stuck else "ready"
        return JSONResponse({"status": status}, 503 if workers.stuck else 200)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def figures() -> Response:
        """Prometheus's text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> list[str]:
    """Serve the files of the page, read once; the paths."""
    paths = []
    for file in sorted(PAGE.iterdir()):
        path = "/" if file.name == "index.html" else f"/{file.name}"
        app.add_route(path, _file(file.read_bytes(), _TYPES[file.suffix]), include_in_schema=False)
        paths.append(path)
    return paths


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {"etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"', "cache-control": "no-cache"}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return serve


async def _problem(request: Request, error: Exception) -> Response:
    """One sentence and the status that fits."""
    path = request.scope["path"]  # `request.url` is made of the Host header, which may be anything
    headers = {"retry-after": "1"} if isinstance(error, OverloadError) else {}
    match error:
        case HTTPException():
            status, sentence = error.status_code, f"{request.method} {path[:200]}: {error.detail.lower()}"
            headers = dict(error.headers or {})
        case RequestValidationError():
            status, sentence = 422, _sentence(error.errors()[0])
        case ConfigError():
            status, sentence = (404 if path in _NOT_THERE else 422), str(error)
        case _:
            status, sentence = 503, str(error)
    return JSONResponse({"error": sentence}, status, headers)


def _sentence(problem: Any) -> str:
    name = str(problem["loc"][-1])[:80]
    match problem["type"]:
        case "missing":
            return f"{name} is missing; add it"
        case "extra_forbidden":
            return f"{name} is no parameter of this route; /openapi.json lists those that are"
        case "string_pattern_mismatch":
            return f"{name} is empty; write a question or some words"
    given = repr(problem["input"])
    message = problem["msg"].replace("Input should", "it should", 1).replace("String should", "it should", 1)
    return f"{name} is {given if len(given) <= 80 else given[:80] + '...'}; {message}"
