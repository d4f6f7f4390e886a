"""The site in a real browser, from disk: what it requests, how wide it is, whether it can be read, pressed, searched
and printed."""

import re
from urllib.parse import unquote

import pytest
from report_content import provenance, run_name, write_site

from pipeline.report.records import FilledTable
from pipeline.report.tables.draw import to_html

WIDTHS = [320, 400, 820, 1400]
OPEN_ALL = "document.querySelectorAll('details').forEach(part => part.open = true)"
PAGES = ["", "study-mjp", "study-droppos", f"run-{run_name(0)}", "claims", "runs", "evaluations"]
TABLE = "[id='mjp.t1']"

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    return write_site(tmp_path_factory.mktemp("report"))


@pytest.fixture
def open_page(browser, site):
    """Opens a page of the report in a fresh context; requests and console messages are kept on it."""
    contexts = []

    def open_with(name="", width=1280, height=2000, file=None, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.requested, page.messages = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("console", lambda message: page.messages.append(message.text))
        page.on("pageerror", lambda error: page.messages.append(str(error)))
        page.goto((file or (site.with_suffix("") / f"{name}.html" if name else site)).as_uri())
        return page

    yield open_with
    for context in contexts:
        context.close()


def test_site__every_page__requests_only_files_of_its_folder_and_reports_no_error(open_page, site):
    page = open_page()
    for name in PAGES[1:]:
        page.goto((site.with_suffix("") / f"{name}.html").as_uri())
        page.wait_for_load_state("networkidle")
        # Chromium reports such an element, but only when the page has a focus before it is shown.
        assert page.locator("[autofocus]").count() == 0
    inside = (site.as_uri(), site.with_suffix("").as_uri() + "/", "data:")
    assert [url for url in page.requested if not url.startswith(inside)] == []
    assert any(url.endswith("assets/page.js") for url in page.requested)
    assert page.messages == []


@pytest.mark.parametrize("width", WIDTHS)
def test_site__every_page_with_everything_open__does_not_scroll_sideways(open_page, site, width):
    page = open_page(width=width, height=800)
    for name in PAGES:
        page.goto((site.with_suffix("") / f"{name}.html" if name else site).as_uri())
        page.evaluate(OPEN_ALL)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_wide_table_on_a_phone__scrolls_in_its_own_frame_and_shows_that_it_goes_on(open_page):
    page = open_page("study-mjp", 380, 800)
    frames = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(part => part.scrollWidth > part.clientWidth + 2)"
        ".map(part => part.classList.contains('goes-on'))"
    )
    assert frames and all(frames)
    page.evaluate("document.querySelectorAll('.scroll').forEach(part => { part.scrollLeft = 9999; })")
    page.wait_for_function("!document.querySelector('.scroll.goes-on')")


def test_phone__picture_wider_than_the_screen__scrolls_and_says_so(open_page):
    page = open_page("study-droppos", 400, 800)
    frame = page.locator(".frame.goes-on").first
    assert frame.evaluate("part => part.scrollWidth > part.clientWidth")
    assert page.locator(".swipe").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size({"width": 1400, "height": 800})
    page.locator(".swipe").first.wait_for(state="hidden")


def test_pictures__are_loaded_when_seen_and_never_wider_than_the_page(open_page):
    page = open_page("study-droppos", 380, 800)
    page.evaluate("document.querySelectorAll('img[src]').forEach(image => { image.loading = 'eager'; })")
    page.wait_for_function("[...document.querySelectorAll('img[src]')].every(image => image.complete)")
    seen = "Math.min(i.clientWidth, i.closest('.frame')?.clientWidth ?? Infinity)"  # a wide one scrolls in its frame
    sizes = page.evaluate(f"[...document.querySelectorAll('img[src]')].map(i => [i.naturalWidth, {seen}])")
    assert len(sizes) == 8 and {natural for natural, _ in sizes} == {28, 700}
    assert all(80 <= shown <= 350 for _, shown in sizes)


def test_picture__pressed__is_shown_larger_and_the_arrow_keys_lead_to_the_next(open_page):
    page = open_page("study-droppos", 1200, 900)
    page.locator("a.zoom").first.click()
    larger = page.locator("dialog.larger")
    assert larger.locator("img").evaluate("image => image.clientWidth") >= 300
    first = larger.locator("p").inner_text()
    page.keyboard.press("ArrowRight")
    assert larger.locator("p").inner_text() != first
    page.keyboard.press("Escape")
    assert not larger.is_visible()


def test_picture__larger_than_the_window__opens_at_its_top_left(open_page):
    page = open_page("study-droppos", 500, 200)
    page.locator("a.zoom").first.click()
    larger = page.locator("dialog.larger")
    page.wait_for_function("document.querySelector('dialog.larger img').naturalWidth > 0")
    assert larger.evaluate("part => part.scrollHeight > part.clientHeight + 100")
    assert larger.evaluate("part => [part.scrollLeft, part.scrollTop]") == [0, 0]
    page.keyboard.press("Escape")
    assert not larger.is_visible()


def test_sound__every__can_be_played_and_has_its_length_and_a_name(open_page):
    page, sounds = open_page("study-droppos", 380, 800), "[...document.querySelectorAll('audio')]"
    page.wait_for_function(f"{sounds}.every(sound => sound.readyState >= 1 || sound.error)")
    found = page.evaluate(f"{sounds}.map(s => [s.error, s.duration, s.controls, s.ariaLabel, s.clientWidth])")
    assert [sound[:3] for sound in found] == [[None, 1.5, True]] * 2
    assert [sound[3] for sound in found] == [f"DropPos, sigma {row}, at 1.0, 1.5 seconds" for row in (0, 1)]
    assert all(sound[4] >= 200 for sound in found)
    moved = "s => s.play().then(() => new Promise(done => s.ontimeupdate = () => s.currentTime > 0 && done(true)))"
    assert page.locator("audio").first.evaluate(moved)


def test_text_of_a_drawing_on_a_phone__can_be_read(open_page):
    page = open_page("study-mjp", 380, 800)
    heights = page.evaluate(
        "[...document.querySelectorAll('.figure > svg text')].filter(t => t.textContent.trim())"
        ".map(t => t.getBoundingClientRect().height)"
    )
    assert len(heights) > 40 and min(heights) >= 9


# What a reader comes for


def test_reader__finds_whether_the_main_claim_holds_with_one_click(open_page):
    page = open_page()
    page.get_by_role("link", name="The mjp study").first.click()
    main = page.locator(".claim.main").inner_text()
    assert "holds" in main and "MJP raises the accuracy of its backbone." in main and "74.6" in main


def test_reader__finds_the_number_that_differs_most_in_a_list(open_page):
    page = open_page("study-mjp")
    table = page.locator(TABLE)
    table.get_by_role("button", name="list by difference").click()
    rows = table.locator(".by-difference tbody tr")
    assert rows.first.inner_text().split("\t")[:2] == ["DeiT-S + JP", "Consistency (%)"]
    sizes = [abs(float(row.split("\t")[4].split()[0])) for row in rows.all_inner_texts()]
    assert len(sizes) > 5 and sizes == sorted(sizes, reverse=True)
    assert rows.nth(0).locator("a").get_attribute("href").startswith("run-")
    pressed = table.locator(".tools [aria-pressed='true']")
    assert pressed.all_inner_texts() == ["list by difference"]
    table.get_by_role("button", name="list by difference").click()
    assert table.locator(".numbers-table").is_visible() and rows.count() == 0
    assert pressed.all_inner_texts() == ["ours"]


def test_list_by_difference__row_with_links_to_its_runs__has_its_own_name(open_page):
    table = open_page("study-mjp").locator(TABLE)
    row = "document.querySelector('[id=\"mjp.t1\"] tbody th')"
    table.page.evaluate(
        f"{row}.insertAdjacentHTML('beforeend', '<small>pretrained</small> <small>paper: DeiT</small>')"
    )
    name = table.page.evaluate(f"{row}.firstElementChild.textContent")
    table.get_by_role("button", name="list by difference").click()
    assert name in table.locator(".by-difference tbody th").all_inner_texts()


def test_order__chosen_before_any_column_is_sorted__sorts_the_first(open_page):
    table = open_page("study-mjp").locator(TABLE)
    table.get_by_role("button", name="paper", exact=True).click()
    assert table.locator("thead th").nth(1).get_attribute("aria-sort") == "descending"


def test_list_by_difference__of_several_units__has_the_order_of_the_line_above_the_table(open_page):
    table = open_page("study-mjp").locator("[id='mjp.t4']")
    table.get_by_role("button", name="list by difference").click()
    found = [row.split("\t") for row in table.locator(".by-difference tbody tr").all_inner_texts()]
    shares = [abs(float(cells[4].split()[0]) / float(cells[3])) for cells in found]
    assert len(shares) > 5 and shares == pytest.approx(sorted(shares, reverse=True), abs=0.01)
    assert [float(cells[5].split()[0]) / 100 for cells in found] == pytest.approx(shares, abs=0.01)
    line = f"Furthest from the paper, relative to its number: {found[0][1]}, {found[0][0]}: "
    assert table.locator(".most").inner_text().startswith(line)


def test_reader__comes_from_a_number_to_its_run_its_file_and_its_learning_curve(open_page):
    page = open_page("study-mjp")
    page.locator(f"{TABLE} a.cell").first.click()
    assert unquote(page.url).endswith(f"run-{run_name(0)}.html#cell-mjp.t1.0:top1")
    line = page.locator("tr:target")
    assert provenance(0, "top1")["file"] in line.inner_text()
    assert page.locator(".curve svg").is_visible()
    assert page.locator("h1").inner_text() == "DeiT-S"


def test_mark__pressed__leads_to_its_claim_which_is_unfolded(open_page):
    page = open_page()
    page.locator("a.mark.not-run-yet").first.click()
    page.wait_for_url("**/study-mjp.html#claim-mjp.c04")
    page.locator("[id='claim-mjp.c04']").wait_for(timeout=5000)


def test_marks__reached_with_the_keyboard__are_read_out_below(open_page):
    page = open_page()
    page.locator("a.mark.false").first.focus()
    assert page.locator(".marks [data-caption]").inner_text() == "does not hold: MJP hampers attacks."


def test_scatter__pointed_at__is_read_out_below(open_page):
    page = open_page()
    point = page.locator("a.point").first
    point.dispatch_event("mouseover")
    words = page.locator(".scatter [data-caption]").inner_text()
    assert words == point.get_attribute("aria-label") and re.search(r": [\d.]+, paper [\d.]+$", words)


# Search, filter, sorting


@pytest.mark.parametrize("name", ["", "study-mjp"])
def test_search__from_any_page__finds_with_the_keyboard_only(open_page, name):
    page = open_page(name)
    page.keyboard.press("/")
    page.keyboard.type("hampers att")
    page.locator(".found a").first.wait_for()
    assert page.locator(".found a").count() == 1
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/study-mjp.html#claim-mjp.c05")
    assert page.messages == []


def test_search__main_claim_of_a_study__finds_it(open_page):
    page = open_page()
    page.get_by_role("searchbox").fill("MJP main claim")
    page.locator(".found a").first.wait_for()
    assert page.locator(".found a").all_inner_texts()[0].startswith("MJP raises the accuracy of its backbone.")


def test_search__of_nothing_there_is__says_so(open_page):
    page = open_page()
    page.get_by_role("searchbox").fill("zebra")
    page.locator(".found .none").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator(".found").is_visible()


@pytest.mark.parametrize(
    ("name", "item"), [("", ".marks li"), ("study-mjp", "[data-filtered] .claim"), ("claims", ".verdicts li")]
)
def test_filter__one_verdict__shows_only_its_claims_and_all_shows_them_again(open_page, name, item):
    page = open_page(name)
    total = page.locator(item).count()
    page.get_by_role("button", name="does not hold").click()
    shown = page.locator(f"{item}:not([hidden])")
    assert shown.count() == {"study-mjp": 1}.get(name, 2)
    assert {shown.nth(at).get_attribute("data-verdict") for at in range(shown.count())} == {"false"}
    if name == "claims":
        headings = page.locator("h2:visible").count()
        assert headings == page.locator("h2:visible + ul:has(li:not([hidden]))").count() > 0
    page.get_by_role("button", name=re.compile("^all")).click()
    assert shown.count() == total


def test_filter__not_run_yet__unfolds_them(open_page):
    page = open_page("study-mjp")
    page.get_by_role("button", name="not run yet").click()
    assert page.locator("[id='claim-mjp.c04']").is_visible()


def test_sorting__by_ours_by_the_papers_and_by_difference__orders_the_rows(open_page):
    page = open_page("study-mjp")
    table = page.locator(TABLE)

    def column(key):
        cells = table.locator("tbody tr td:nth-child(2)").all()
        return [float(value) for cell in cells if (value := cell.get_attribute(f"data-{key}"))]

    head = table.get_by_role("button", name="Top-1")
    before = column("ours")
    head.click()
    assert column("ours") == sorted(before, reverse=True) != before
    head.click()
    assert column("ours") == sorted(before)
    assert table.locator("th[aria-sort='ascending']").count() == 1
    for key in ("paper", "difference"):
        table.get_by_role("button", name=key, exact=True).click()
        assert column(key) == sorted(column(key))


def test_sorting__runs__by_time(open_page):
    page = open_page("runs")
    page.get_by_role("button", name="Time").click()
    seconds = [float(cell.get_attribute("data-value")) for cell in page.locator("tbody td:last-child").all()]
    assert len(seconds) == 11 and seconds == sorted(seconds, reverse=True)


# Phone, colours, keyboard, paper


def test_phone__contents__are_behind_a_button(open_page):
    page = open_page("study-mjp", 400, 800)
    link = page.locator("#contents").get_by_role("link", name="All runs")
    assert not link.is_visible()
    page.get_by_role("button", name="Contents").click()
    link.click()
    assert page.url.endswith("runs.html")


def test_keyboard__first_stop__skips_to_the_content(open_page):
    page = open_page("study-mjp")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_colours__chosen__hold_on_every_page(open_page, site):
    page = open_page()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(2):  # light, then dark
        page.locator(".theme").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.goto((site.with_suffix("") / "runs.html").as_uri())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark != light
    assert page.locator(".theme").inner_text() == "Colours: dark"


def test_light_and_dark__differ_and_every_text_has_contrast(open_page, site):
    seen = {}
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        seen[scheme] = set()
        for name in PAGES[:4]:
            page.goto((site.with_suffix("") / f"{name}.html" if name else site).as_uri())
            page.evaluate(OPEN_ALL)
            pairs = page.evaluate(TEXT_COLOURS)
            assert [(ink, back, text) for ink, back, text in pairs if contrast(ink, back) < 4.5] == []
            seen[scheme] |= {(ink, back) for ink, back, _ in pairs}
    assert seen["light"].isdisjoint(seen["dark"])


def test_printed__shows_the_numbers_and_leaves_out_what_is_pressed(open_page):
    page = open_page("study-mjp", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator(".side").is_visible()
    assert not page.locator(".tools").first.is_visible()
    assert not page.locator(".claim details").first.is_visible()
    assert page.locator(f"{TABLE} a.cell").first.is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.table .scroll')).overflowX") == "visible"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_without_script__everything_can_be_read_and_followed(open_page):
    page = open_page("study-mjp", java_script_enabled=False)
    assert not page.get_by_role("button", name="list by difference").is_visible()
    assert not page.get_by_role("searchbox").is_visible()
    page.locator(f"{TABLE} a.cell").first.click()
    assert page.locator("h1").inner_text() == "DeiT-S"


# A table that stands alone


def test_single_table__number_pressed_with_the_keyboard__shows_provenance_until_escape(open_page, tmp_path):
    from report_content import make_tables, read_picture

    file = tmp_path / "table.html"
    file.write_text(to_html(FilledTable(**make_tables()[0]), read_picture))
    page = open_page(file=file)
    cell, shown = page.locator("button.cell").first, page.locator(".provenance:popover-open")
    cell.focus()
    page.keyboard.press("Enter")
    assert shown.count() == 1
    for fact in provenance(0, "top1").values():
        if isinstance(fact, str):
            assert fact in shown.inner_text()
    page.keyboard.press("Escape")
    assert shown.count() == 0
    assert cell.evaluate("cell => cell === document.activeElement")
    cell.click()
    page.get_by_role("button", name="Close").click()
    assert shown.count() == 0 and page.messages == []


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
