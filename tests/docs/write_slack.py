"""`make slack-docs`: writes docs/reference/slack.md and draws a picture of each message into docs/images/slack."""

from __future__ import annotations

import base64

from tests.docs.slack_drawing import html
from tests.docs.slack_page import PAGE, PICTURES, page, pictured
from tests.e2e.browser import Browser

_QUALITY = 75


def draw(browser: Browser, text: str) -> bytes:
    """The message of a page as WebP."""
    browser.driver.get(f"data:text/html;base64,{base64.b64encode(text.encode()).decode()}")
    box = browser.run("const b = document.getElementById('m').getBoundingClientRect(); return [b.width, b.height]")
    clip = {"x": 0, "y": 0, "width": box[0], "height": box[1], "scale": 1}
    options = {"format": "webp", "quality": _QUALITY, "captureBeyondViewport": True, "clip": clip}
    return base64.b64decode(browser.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])


def test_write() -> None:
    """Page and pictures; a picture that nothing names any more is removed."""
    PAGE.write_text(page(), encoding="utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    wanted = pictured()
    for path in PICTURES.glob("*.webp"):
        if path.name not in wanted:
            path.unlink()
    missing = {name: payload for name, payload in wanted.items() if not (PICTURES / name).exists()}
    if missing:
        browser = Browser()
        try:
            browser.width(640)
            for name, payload in missing.items():
                (PICTURES / name).write_bytes(draw(browser, html(payload)))
        finally:
            browser.close()
    print(f"wrote {PAGE.name}, drew {len(missing)} of {len(wanted)} pictures")
