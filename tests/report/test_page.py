"""The page in a browser: quiet, whole on a phone, readable in both schemes, deaf to what is in it.

A browser of the system is used; where there is none, these tests are skipped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from distillspec.report import report
from report_runs import (
    HOSTILE,
    compared,
    create,
    evaluation,
    example_rows,
    full_measurement,
    hostile_rows,
    trade_off,
    transfer_result,
)

DRAFTS = ["runs/raw", f"runs/{'long-name-' * 8}$x^ <b>"]
DOMAINS = ["code", "prose", HOSTILE]


class Opened(NamedTuple):
    page: Page
    messages: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"no browser on this machine: looked for {', '.join(names)}")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind; names and outputs try to break each of them."""
    root = tmp_path_factory.mktemp("pages")
    drafts = [
        {**full_measurement(alpha, domains=DOMAINS), "draft": name}
        for name, alpha in zip(DRAFTS, (0.3, 0.42), strict=True)
    ]
    several = {
        **drafts[0],
        "drafts": drafts,
        "comparison": [compared(DRAFTS[1], DRAFTS[0], DOMAINS)],
        "unmet": ["Asked for 2×, and 1.42× was measured."],
    }
    results = {
        "measure": several,
        "evaluate": {**evaluation(), "task": HOSTILE, "target": "t" * 300},
        "tradeoff": {**trade_off(), "metric": HOSTILE},
        "transfer": transfer_result(),
    }
    found = {}
    for verb, result in results.items():
        run = create(root / verb, verb)
        run.write_json("result.json", result)
        run.write_rows("outputs.jsonl", hostile_rows())
        if verb == "measure":
            run.write_rows("examples.jsonl", example_rows(DRAFTS, 12))
        found[verb] = report(run.folder)[0]
    return found


def opened(browser: Browser, path: Path, width: int, scheme: str = "light") -> Opened:
    """Open a page, with all its folded parts unfolded."""
    viewport = {"width": width, "height": 800}
    page = browser.new_context(viewport=viewport, color_scheme=scheme).new_page()
    found = Opened(page, [], [])
    page.on("console", lambda message: found.messages.append(message.text))
    page.on("pageerror", lambda error: found.messages.append(str(error)))
    page.on("request", lambda request: found.requests.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    return found


@pytest.mark.parametrize("verb", ["measure", "evaluate", "tradeoff", "transfer"])
@pytest.mark.parametrize("width", [400, 1200])
def test_a_page_is_quiet_alone_and_no_wider_than_the_screen(
    verb: str, width: int, browser: Browser, pages: dict[str, Path]
) -> None:
    page, messages, requests = opened(browser, pages[verb], width)
    assert messages == []
    assert requests == [pages[verb].as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Beyond the screen lies only what scrolls by itself.
    beyond = page.evaluate(
        "[...document.querySelectorAll('body *')]"
        ".filter(one => !one.closest('.scroll, svg') && one.getBoundingClientRect().right > "
        "innerWidth + 0.5).map(one => one.outerHTML.slice(0, 80))"
    )
    assert beyond == []
    page.context.close()


def test_what_a_model_wrote_is_shown_and_does_nothing(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page, messages, _ = opened(browser, pages["measure"], 1200)
    assert page.title() == "measure – DistillSpec"
    assert page.locator("script, img").count() == 0
    assert messages == []
    answer = page.locator(".answer").first
    assert HOSTILE in answer.inner_text()
    assert HOSTILE in page.locator(".prompt").first.inner_text()
    for code in ("U+001B", "U+202E"):
        assert answer.get_by_text(code, exact=True).is_visible()
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page.content())
    page.context.close()


def test_every_role_is_seen_and_told_apart_without_colour(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page, _, _ = opened(browser, pages["measure"], 400)
    looks = set()
    for role in "acbt":
        token = page.locator(f".answer .tok.{role}").first
        assert token.is_visible()
        assert page.locator(f".legend .tok.{role}").is_visible()
        look = token.evaluate(
            "one => { const s = getComputedStyle(one); return [s.borderBottomStyle, "
            "s.borderBottomWidth, s.borderBottomColor === 'rgba(0, 0, 0, 0)', s.fontWeight].join() "
            "}"
        )
        looks.add(look)
    assert len(looks) == 4
    page.context.close()


def test_the_first_thing_after_the_name_is_the_verdict(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page, _, _ = opened(browser, pages["measure"], 400)
    first = page.locator("h1 + .verdicts > li")
    assert first.nth(0).inner_text().endswith("Asked for 2×, and 1.42× was measured.")
    assert (
        first.nth(1)
        .inner_text()
        .endswith("Use this draft with γ = 2: 1.30× [1.05, 1.30] measured.")
    )
    box = first.nth(1).bounding_box()
    assert box is not None
    assert box["y"] < 400
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground_in_both_schemes(
    scheme: str, browser: Browser, pages: dict[str, Path]
) -> None:
    """WCAG 2.1 asks for a contrast of 4.5 to 1."""
    page, _, _ = opened(browser, pages["measure"], 1200, scheme)
    ground = colour(page, "body", "backgroundColor")
    assert (luminance(ground) < 0.05) == (scheme == "dark")
    grounds = {
        "body": ground,
        ".answer": colour(page, ".answer", "backgroundColor"),
        ".verdicts li": colour(page, ".verdicts li", "backgroundColor"),
    }
    for role in "acbt":
        for place in (".answer", ".legend"):
            shown = colour(page, f"{place} .tok.{role}", "color")
            assert contrast(shown, grounds.get(place, ground)) >= 4.5, (role, place)
    for selector, on in (
        ("p.soft", "body"),
        ("summary", "body"),
        ("figcaption", "body"),
        ("td small", "body"),
        (".verdicts li", ".verdicts li"),
        (".verdicts .about", ".verdicts li"),
    ):
        assert contrast(colour(page, selector, "color"), grounds[on]) >= 4.5, selector
    ink = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert contrast(channels(ink), ground) >= 4.5
    page.context.close()


def test_every_figure_has_a_name_and_its_data(browser: Browser, pages: dict[str, Path]) -> None:
    page, _, _ = opened(browser, pages["measure"], 1200)
    figures = page.locator("figure")
    assert figures.count() == 7
    for index in range(figures.count()):
        figure = figures.nth(index)
        assert "Acceptance rule: ratio." in figure.locator("figcaption").inner_text()
        assert figure.get_by_role("img").count() == 1
        assert figure.locator("details table tbody tr").count() >= 2
    page.context.close()


def colour(page: Page, selector: str, name: str) -> tuple[float, ...]:
    shown = page.locator(selector).first.evaluate(f"one => getComputedStyle(one).{name}")
    return channels(shown)


def channels(shown: str) -> tuple[float, ...]:
    found = tuple(float(number) for number in re.findall(r"[\d.]+", shown))
    assert len(found) == 3, shown  # nothing half transparent
    return found


def luminance(colour: tuple[float, ...]) -> float:
    """Relative luminance, WCAG 2.1."""
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)
