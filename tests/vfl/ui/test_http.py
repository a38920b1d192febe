"""`cafe ui` asked over plain HTTP: what it answers, and whom it refuses."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.integration.command_support import cafe, wait_for
from tests.vfl.ui.folder_support import Served, begin, estimate, traffic
from vfl.limits import BROWSERS

OURS = {"X_Cafe": "page"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run under way: its folder, its journal, and its newest estimate."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    journal = begin(folder)
    x = estimate(journal, folder, 10)
    (folder / "summary.json").write_text("{}")
    (folder / "report.html").write_text("<script>1</script>")
    (folder / "other.txt").write_text("not for everybody")
    return folder, journal, x


@pytest.fixture(scope="module")
def page(run):
    served = Served(run[0])
    yield served
    assert served.end() == 0


@pytest.fixture(scope="module")
def guarded(run):
    """The same page, open to other machines."""
    served = Served(run[0], "0.0.0.0:0")
    yield served
    served.end()


def test_the_state_comes_at_once_and_again_with_every_change(run, page):
    stream = page.stream()
    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    assert stream.next() == ("hello", '{"controls": false}')
    assert stream.state()["round"] == 2
    run[1].round(3, 40, loss=0.5, rate=0.0, traffic=lambda: traffic(3))
    run[1].say("round three is done")
    state = stream.state()
    assert (state["round"], state["losses"][-1]) == (3, [3, 0.5])
    stream.close()


def test_pictures_are_those_of_the_estimate(run, page):
    answer, body = page.ask("/pictures/1/recovered/23.png")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    found = np.asarray(Image.open(io.BytesIO(body)))
    assert np.array_equal(found, (run[2][29, 0] * 255).round().astype(np.uint8))
    assert page.ask("/pictures/1/real/0.png")[0].status == 404  # no truth in an estimate


@pytest.mark.parametrize(
    "path",
    [
        "/files/other.txt",
        "/files/journal.jsonl",
        "/files/../other.txt",
        "/files/..%2fother.txt",
        "/files/%2e%2e/%2e%2e/other.txt",
        "/other.txt",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/pictures/1/recovered/24.png",
        "/pictures/2/recovered/0.png",
        "/pictures/1/../0.png",
    ],
)
def test_nothing_else_is_given_out(page, path):
    answer, body = page.ask(path)
    assert answer.status == 404
    assert len(body) < 100


def test_every_answer_forbids_what_the_page_does_not_need(page):
    for path in ("/", "/static/page.js", "/files/summary.json", "/nowhere"):
        headers = page.ask(path)[0].headers
        assert headers["content-security-policy"].startswith("default-src 'self'; frame-ancestors 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_a_report_has_no_hold_on_the_page(page):
    answer, body = page.ask("/files/report.html")
    assert body == b"<script>1</script>"
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"sandbox allow-popups", "default-src 'none'"} < set(policy)
    assert not any(part.startswith(("script-src", "connect-src")) for part in policy)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "192.0.2.7", "127.0.0.1.evil.example", "[", ""])
def test_a_name_that_is_not_ours_is_refused(page, host):
    for method in ("GET", "POST"):
        answer, body = page.ask("/events", method, Host=host)
        assert answer.status == 403
        assert b"does not answer to that name" in body


def test_names_of_this_machine_are_ours_through_any_tunnel(page):
    assert [page.ask("/", Host=host)[0].status for host in ("localhost:9999", "[::1]:80", "127.0.0.1")] == [200] * 3


def test_other_sites_cannot_say_a_word(page):
    refused = [
        {},
        {"Origin": page.origin},
        OURS,
        {"Origin": "http://evil.example", **OURS},
        {"Origin": "null", **OURS},
        {"Origin": f"http://localhost:{page.port}", **OURS},
        {"Origin": f"{page.origin}0", **OURS},
    ]
    for headers in refused:
        answer, body = page.ask("/control/stop", "POST", **headers)
        assert (answer.status, body) == (403, b"Refused: that request comes from another page.\n"), headers
    assert page.tell("stop") == (409, "this page only shows a folder; it has no hold on the run\n")
    assert page.tell("explode")[0] == 404
    assert page.ask("/control/stop")[0].status == 405


def test_beyond_this_machine_a_token_is_wanted(guarded):
    assert len(guarded.token) >= 32
    for path in ("/", "/events", "/static/page.js", "/pictures/1/recovered/0.png", "/?token=wrong", "/?token="):
        answer, body = guarded.ask(path)
        assert (answer.status, body) == (
            403,
            b"Refused: this page wants its token: open the whole address that was printed.\n",
        )
    wrong = f"cafe-{guarded.port}=wrong"
    assert guarded.ask("/", Cookie=wrong)[0].status == 403
    let_in = guarded.ask(f"/?token={guarded.token}")[0]
    assert (let_in.status, let_in.headers["location"]) == (303, "/")
    cookie = let_in.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    token = cookie.split(";")[0]
    assert guarded.ask("/", Cookie=token)[0].status == 200
    assert guarded.ask("/", Cookie=token, Host="192.0.2.7:80")[0].status == 200  # whatever address this machine has
    assert guarded.ask("/", Cookie=token, Host="evil.example")[0].status == 403
    assert guarded.ask("/control/stop", "POST", Cookie=token, **OURS)[0].status == 403


def test_only_so_many_may_watch(page):
    streams = [page.stream() for _ in range(BROWSERS)]
    assert {stream.answer.status for stream in streams} == {200}
    refused = page.stream()
    assert (refused.answer.status, refused.answer.read()) == (503, b"16 browsers are watching already; close one\n")
    for stream in streams:
        stream.close()

    def comes_in():
        stream = page.stream()
        stream.close()
        return stream.answer.status == 200

    wait_for(comes_in)


def test_the_last_word_of_a_page(run):
    served = Served(run[0])
    stream = served.stream()
    assert stream.next()[0] == "hello"
    assert json.loads(stream.next()[1])["state"] == "running"
    assert served.end() == 0
    assert stream.next() == ("closed", "")


def test_bad_input_ends_with_a_sentence(run, page, tmp_path):
    for arguments, words in [
        ([tmp_path], f"cafe: {tmp_path} is not a run's folder: it has no journal.jsonl [E81]\n"),
        (
            [run[0], "--ui-listen", "here"],
            "cafe: --ui-listen here: expected HOST:PORT, for example 192.0.2.10:7000 [E10]\n",
        ),
        (
            [run[0], "--ui-listen", f"127.0.0.1:{page.port}"],
            f"cafe: --ui-listen 127.0.0.1:{page.port}: the page cannot be served there (Address already in use); "
            "port 0 takes a free one [E81]\n",
        ),
    ]:
        done = cafe("ui", *arguments)
        assert (done.returncode, done.stderr) == (2, words)
