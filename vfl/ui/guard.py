"""Who may ask what: the name the page was asked under, the token, and no requests that another site makes."""

import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-cafe"
"""Goes with every POST of the page: no form of another site can send it, and no script without being asked first."""
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Rules:
    """Under which names the page answers, and the token that it wants, if any."""

    host: str
    port: int
    token: str | None = None

    @property
    def cookie(self) -> str:
        """Return the cookie's name: browsers keep those of all ports of a machine together."""
        return f"cafe-{self.port}"

    def answers_to(self, name: str) -> bool:
        """Tell whether a request's Host is ours.

        A site that lets its own name lead here (DNS rebinding) is refused: no address in digits is such a name.
        """
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in ("localhost", self.host.lower())
        return self.token is not None or address.is_loopback

    def knows(self, token: str) -> bool:
        """Tell whether a token is the right one."""
        return self.token is None or hmac.compare_digest(token.encode(), self.token.encode())


class Guard:
    """Stands before the page: refuses, lets in, and puts its headers on every answer."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(Request(scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that is not let through."""
        if not self._rules.answers_to(_name(request)):
            return _refuse("this page does not answer to that name: use the address that was printed")
        given = request.query_params.get("token")
        if self._rules.token is not None and given is not None and self._rules.knows(given):
            return self._let_in()
        if not self._rules.knows(request.cookies.get(self._rules.cookie, "")):
            return _refuse("this page wants its token: open the whole address that was printed")
        if request.method not in ("GET", "HEAD") and not _of_this_page(request):
            return _refuse("that request comes from another page")
        return None

    def _let_in(self) -> Response:
        """Put the token into a cookie, and out of the address."""
        answer = RedirectResponse("/", status_code=303)
        assert self._rules.token is not None
        answer.set_cookie(self._rules.cookie, self._rules.token, httponly=True, samesite="strict")
        return answer


def _name(request: Request) -> str:
    """Return the name that the page was asked under, without the port."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _of_this_page(request: Request) -> bool:
    origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return request.headers.get("origin") == origin and HEADER in request.headers


def _refuse(sentence: str) -> Response:
    return PlainTextResponse(f"Refused: {sentence}.\n", status_code=403)
