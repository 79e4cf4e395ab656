"""Pages in Debian's Chromium, driven by Playwright: no network, and whatever the page complains of fails the test."""

import shutil
from contextlib import contextmanager

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
SWITCHES = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
DESK, PHONE = 1280, 390


@contextmanager
def chromium():
    """Gives `opened(path, width, scheme)`, a context manager for a page; what it complained of fails at its end."""
    from playwright.sync_api import sync_playwright

    assert BROWSER, "install Chromium (Debian: apt-get install chromium) or Chrome for these checks"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=SWITCHES)

        @contextmanager
        def opened(path, width=DESK, scheme="light"):
            size = {"width": width, "height": 900}
            context = browser.new_context(viewport=size, color_scheme=scheme, has_touch=width == PHONE, offline=True)
            page = context.new_page()
            faults = listen(page)
            page.goto(path.as_uri())
            yield page
            context.close()
            assert faults == []

        try:
            yield opened
        finally:
            browser.close()


def listen(page):
    """A list that grows with errors and warnings of the console, uncaught exceptions, and requests to anywhere."""
    faults = []
    page.on("console", lambda told: faults.append(told.text) if told.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else faults.append(asked.url))
    return faults


def check_fits(page):
    """The page is as wide as the window, and not wider."""
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]
