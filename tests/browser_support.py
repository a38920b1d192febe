"""A real headless Chromium, driven with playwright: pages as people see them, and what they ask of the network."""

import contextlib
import io
import shutil
from collections.abc import Iterator

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, ElementHandle, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def chromium() -> str | None:
    """Where this machine's own Chromium is."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """A browser for as long as the block lasts."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page that notes every error in its console and every address it asks for."""

    def __init__(self, browser: Browser, **options) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def pixels(element: Page | ElementHandle) -> np.ndarray:
    """A page or an element of it as it is painted: height, width, red green blue."""
    return np.asarray(Image.open(io.BytesIO(element.screenshot())).convert("RGB")).astype(int)
