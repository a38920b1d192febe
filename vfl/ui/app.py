"""The page's server: static files, the run's state as server-sent events, pictures, a few files, and three words."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from vfl.files import is_own
from vfl.limits import BROWSERS
from vfl.ui.guard import Guard, Rules
from vfl.ui.watch import FILES, Watch

STATIC = Path(__file__).parent / "static"
LOOK_SECONDS = 0.2
QUIET_SECONDS = 15.0
"""How long a stream of events may be silent: longer, and a proxy between may hang up."""
REPORT_POLICY = "sandbox allow-popups; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
"""A report has all inside, and may come from another user: it runs no script and cannot speak to this server."""
WHEN = {"pause": ("running",), "resume": ("paused",), "stop": ("waiting", "running", "paused", "attacking")}
"""In which states of a run each word makes sense."""


class Page:
    """One run's page: what is watched, who looks on, and the way to tell the coordinator something."""

    def __init__(self, watch: Watch, controls: Connection | None, stopping: Callable[[], bool]) -> None:
        self.watch, self._controls, self._stopping = watch, controls, stopping
        self.streams = 0
        self._closed = False

    @contextlib.asynccontextmanager
    async def watching(self, _app: Starlette) -> AsyncIterator[None]:
        """Follow the run for as long as the server runs."""
        await asyncio.to_thread(self.watch.refresh)
        following = asyncio.create_task(self._follow())
        yield
        await following

    async def events(self, _request: Request) -> Response:
        """Answer with the run's state, anew whenever something happens."""
        if self.streams >= BROWSERS:
            return PlainTextResponse(f"{BROWSERS} browsers are watching already; close one\n", status_code=503)
        return _Stream(self)

    async def picture(self, request: Request) -> Response:
        """Answer with a picture of a recent estimate, or with the real one."""
        gallery = self.watch.galleries.get(request.path_params["number"])
        pictures = {"recovered": gallery.recovered, "real": gallery.real} if gallery else {}
        chosen, place = pictures.get(request.path_params["kind"], ()), request.path_params["place"]
        if place >= len(chosen):
            return PlainTextResponse("there is no such picture (any more)\n", status_code=404)
        return Response(chosen[place], media_type="image/png")

    async def file(self, request: Request) -> Response:
        """Answer with a file of the run's folder, of the few that may be opened."""
        name = request.path_params["name"]
        path = self.watch.folder / name
        if name not in FILES or not is_own(path):
            return PlainTextResponse("there is no such file\n", status_code=404)
        headers = {"content-security-policy": REPORT_POLICY} if path.suffix == ".html" else {}
        return FileResponse(path, headers=headers)

    async def control(self, request: Request) -> Response:
        """Pass a word on to the coordinator."""
        word, state = request.path_params["word"], self.watch.view.state
        if word not in WHEN:
            return PlainTextResponse("the words are pause, resume and stop\n", status_code=404)
        if self._controls is None:
            return PlainTextResponse("this page only shows a folder; it has no hold on the run\n", status_code=409)
        if state not in WHEN[word]:
            return PlainTextResponse(f"a run that is {state} cannot {word}\n", status_code=409)
        try:
            self._controls.send(word)
        except OSError:
            return PlainTextResponse("the coordinator no longer listens\n", status_code=409)
        return Response(status_code=204)

    async def stream(self) -> AsyncIterator[str]:
        """Yield the state as events, until the server stops."""
        has, silent = 0, 0.0
        yield f"event: hello\ndata: {json.dumps({'controls': self._controls is not None})}\n\n"
        while True:
            closed = self._closed  # first: the last version comes before the last word
            if has != self.watch.version:
                has, silent = self.watch.version, 0.0
                yield f"data: {self.watch.text}\n\n"
            elif silent >= QUIET_SECONDS:
                silent = 0.0
                yield ": still here\n\n"
            if closed:
                yield "event: closed\ndata: \n\n"
                return
            await asyncio.sleep(LOOK_SECONDS)
            silent += LOOK_SECONDS

    async def _follow(self) -> None:
        while not self._stopping():
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.watch.refresh)
        await asyncio.to_thread(self.watch.refresh)
        self._closed = True


class _Stream(StreamingResponse):
    """Server-sent events to one browser, counted."""

    def __init__(self, page: Page) -> None:
        super().__init__(page.stream(), media_type="text/event-stream")
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._page.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._page.streams -= 1


def make_app(page: Page, rules: Rules) -> Starlette:
    """Put the page together."""

    async def index(_request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    return Starlette(
        routes=[
            Route("/", index),
            Route("/events", page.events),
            Route("/pictures/{number:int}/{kind}/{place:int}.png", page.picture),
            Route("/files/{name}", page.file),
            Route("/control/{word}", page.control, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, rules)],
        lifespan=page.watching,
    )
