"""A page of another origin, open in the same browser, that tries to pause and stop a live run."""

import http.server
import threading

import pytest

from tests.browser_support import browsing, chromium
from tests.integration.command_support import ours, start
from tests.vfl.ui.folder_support import Asked

CONFIG = """
data: {name: digits, samples: 24}
federation: {workers: 1, batch_size: 8, rounds: 3}
model: {name: mlp, hidden: [12]}
attack: {name: none}
"""
EVIL = """<!doctype html><title>trying</title><iframe name=hidden></iframe>
<form method=post target=hidden action="ADDRESS/control/stop"></form><script>
const post = (word, options) =>
  fetch(`ADDRESS/control/${word}`, {method: "POST", ...options}).then(a => a.type, () => "refused")
navigator.sendBeacon("ADDRESS/control/stop", "x")
document.forms[0].submit()
const ways = [{mode: "no-cors"}, {headers: {"X-Cafe": "page"}}, {mode: "no-cors", credentials: "include"}]
Promise.all(["pause", "stop"].flatMap(word => ways.map(way => post(word, way))))
  .then(found => { document.title = found.join() })
</script>"""


@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")
def test_another_sites_page_in_the_same_browser_can_neither_pause_nor_stop_a_live_run(tmp_path):
    config, tag = tmp_path / "run.yaml", f"origin {tmp_path}"
    config.write_text(CONFIG)
    listening = ["--listen", "127.0.0.1:0", "--ui", "--ui-listen", "127.0.0.1:0"]
    page = Asked(start("serve", config, "--out", tmp_path / "out", *listening, tag=tag))
    heard: list[str] = []

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.path)
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(EVIL.replace("ADDRESS", page.origin).encode())

        def log_message(self, *_words):
            pass

    try:
        stream = page.stream()
        assert stream.next() == ("hello", '{"controls": true}')
        assert stream.state()["state"] == "waiting"
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as site, browsing() as browser:
            threading.Thread(target=site.serve_forever, daemon=True).start()
            window = browser.new_context()
            window.new_page().goto(page.origin)  # the run's own page is open too
            other = window.new_page()
            other.goto(f"http://127.0.0.1:{site.server_address[1]}/")
            other.wait_for_function("document.title != 'trying'")
            assert other.title().split(",") == ["refused"] * 6
            site.shutdown()
        assert heard
        assert page.process.poll() is None
        assert page.tell("pause") == (409, "a run that is waiting cannot pause\n")  # so no word has been taken
        assert page.tell("stop") == (204, "")
        assert page.process.wait(timeout=120) == 130
    finally:
        for process in ours(tag):
            process.kill()
