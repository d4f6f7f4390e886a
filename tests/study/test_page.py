"""The report in a real browser: what it requests, how wide it is, whether it can be read, pressed and printed."""

import re

import pytest
from report_content import provenance, write_whole

CELLS = "[id='mjp.t1'] button.cell"
WIDTHS = [320, 380, 820, 1400]
OPEN_ALL = "document.querySelectorAll('details').forEach(part => part.open = true)"

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="session")
def page_file(tmp_path_factory):
    return write_whole(tmp_path_factory.mktemp("report"))


@pytest.fixture
def open_page(browser, page_file):
    """Opens the report in a fresh page; requests and console messages are kept on it."""
    contexts = []

    def open_with(width=1280, height=2000, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.requested, page.messages = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("console", lambda message: page.messages.append(message.text))
        page.on("pageerror", lambda error: page.messages.append(str(error)))
        page.goto(page_file.as_uri())
        return page

    yield open_with
    for context in contexts:
        context.close()


def test_page__opened__requests_only_itself_and_reports_no_error(open_page, page_file):
    page = open_page()
    page.wait_for_load_state("networkidle")
    assert [url for url in page.requested if not url.startswith("data:")] == [page_file.as_uri()]
    assert page.messages == []


@pytest.mark.parametrize("width", WIDTHS)
def test_page__with_everything_open__does_not_scroll_sideways(open_page, width):
    page = open_page(width, 800)
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_page__wide_table_on_a_phone__scrolls_in_its_own_frame(open_page):
    page = open_page(380, 800)
    assert page.evaluate("[...document.querySelectorAll('.scroll')].some(part => part.scrollWidth > part.clientWidth)")


def test_page__every_picture__is_loaded_and_large_enough_to_see(open_page):
    page = open_page(380, 800)
    sizes = page.evaluate("[...document.images].map(image => [image.naturalWidth, image.clientWidth])")
    assert len(sizes) == 8
    assert all(shown >= {28: 90, 700: 500}[natural] for natural, shown in sizes)


def test_page__every_sound__can_be_played_and_has_its_length_and_a_name(open_page):
    page, sounds = open_page(380, 800), "[...document.querySelectorAll('audio')]"
    page.wait_for_function(f"{sounds}.every(sound => sound.readyState >= 1 || sound.error)")
    found = page.evaluate(f"{sounds}.map(s => [s.error, s.duration, s.controls, s.ariaLabel, s.clientWidth])")
    assert [sound[:3] for sound in found] == [[None, 1.5, True]] * 2
    assert [sound[3] for sound in found] == [f"DropPos, sigma {row}, at 1.0, 1.5 seconds" for row in (0, 1)]
    assert all(sound[4] >= 200 for sound in found)
    moved = "s => s.play().then(() => new Promise(done => s.ontimeupdate = () => s.currentTime > 0 && done(true)))"
    assert page.locator("audio").first.evaluate(moved)


def test_page__text_of_a_drawing_on_a_phone__can_be_read(open_page):
    page = open_page(380, 800)
    heights = page.evaluate(
        "[...document.querySelectorAll('.figure > svg text')].filter(t => t.textContent.trim())"
        ".map(t => t.getBoundingClientRect().height)"
    )
    assert len(heights) > 40 and min(heights) >= 9


def test_page__cell_pressed_with_the_keyboard__shows_provenance_until_escape(open_page):
    page = open_page()
    cell_ = page.locator(CELLS).first
    shown = page.locator(".provenance:popover-open")
    cell_.focus()
    page.keyboard.press("Enter")
    assert shown.count() == 1
    for fact in provenance(0, "top1").values():
        if isinstance(fact, str):
            assert fact in shown.inner_text()
    page.keyboard.press("Escape")
    assert shown.count() == 0
    assert cell_.evaluate("cell => cell === document.activeElement")


def test_page__cell_clicked__shows_its_commit(open_page):
    page = open_page(360, 800)
    page.locator(CELLS).nth(3).click()
    assert provenance(1, "top1")["commit"] in page.locator(".provenance:popover-open").inner_text()
    page.get_by_role("button", name="Close").click()
    assert page.locator(".provenance:popover-open").count() == 0


def test_page__printed__has_no_button_chrome_and_no_open_popover(open_page):
    page = open_page(color_scheme="dark")
    page.locator(CELLS).first.click()
    page.emulate_media(media="print", color_scheme="dark")
    style = page.locator(CELLS).first.evaluate(
        "c => ['borderTopWidth', 'backgroundColor', 'boxShadow'].map(name => getComputedStyle(c)[name])"
    )
    assert style == ["0px", "rgba(0, 0, 0, 0)", "none"]
    assert not page.locator(".provenance").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('#tables .scroll')).overflowX") == "visible"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_page__printed__shows_what_explains_the_numbers_and_leaves_out_what_cannot_be_pressed(open_page):
    page = open_page()
    page.emulate_media(media="print")
    caveat, curve = page.locator(".caveat p"), page.locator(".training .curve").first
    assert [part.bounding_box()["height"] > 10 for part in (caveat, curve)] == [True, True]
    assert not page.locator(".claim details").first.is_visible()
    assert not page.locator(".fold summary").first.is_visible()
    assert page.locator(".run summary").first.is_visible()


def test_page__light_and_dark__differ_and_every_text_has_contrast(open_page):
    seen = {}
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        page.evaluate(OPEN_ALL)
        pairs = page.evaluate(TEXT_COLOURS)
        weak = [(ink, back, text) for ink, back, text in pairs if contrast(ink, back) < 4.5]
        assert weak == []
        seen[scheme] = {(ink, back) for ink, back, _ in pairs}
    assert seen["light"].isdisjoint(seen["dark"])


# Every element that holds text of its own, with its colour and the nearest background behind it.
TEXT_COLOURS = """() => [...document.querySelectorAll('body *')]
  .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.checkVisibility())
  .map(e => {
    const style = getComputedStyle(e);
    let at = e, back = style.backgroundColor;
    while (back === 'rgba(0, 0, 0, 0)' && at.parentElement) {
      at = at.parentElement;
      back = getComputedStyle(at).backgroundColor;
    }
    const ink = e.namespaceURI.endsWith('svg') ? style.fill : style.color;
    return [ink, back, e.textContent.trim().slice(0, 30)];
  })"""


def contrast(first: str, second: str) -> float:
    """WCAG contrast ratio of two CSS colours such as 'rgb(1, 2, 3)'."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted([luminance(first), luminance(second)], reverse=True)
    return (high + 0.05) / (low + 0.05)
