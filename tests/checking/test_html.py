"""The page: whole by itself, shown without errors, nobody can inject into it, and it answers to clicks."""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser

import pytest
import torch

from momentprop.checking import formatting, html, sentences
from tests.checking.reports import EVIL


class Elements(HTMLParser):
    """Everything in a page that could run or fetch something, and all text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_data(self, data):
        self.text += data


def test_nothing_of_the_user_becomes_markup(evil_report):
    found = Elements(evil_report.to_html())
    assert found.tags.count("script") == 1  # ours
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert EVIL in found.text
    assert "'><img src=x onerror=alert(1)>" in found.text
    assert '" onload="alert(1)' in found.text


def test_the_page_needs_nothing_from_outside(report):
    found = Elements(report.to_html())
    assert not {"link", "iframe", "object", "embed"} & set(found.tags)
    sources = [value for _, name, value in found.attributes if name in ("src", "href", "srcset")]
    assert len(sources) == 6  # the pictures of the inputs, without and with noise
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "url(" not in report.to_html()
    assert "http://" not in report.to_html()
    assert "https://" not in report.to_html()


def test_the_cards_tell_the_worth_of_means_and_of_deviations(report):
    page, found = report.to_html(), report.at_output(report.chief)
    means, deviations = (formatting.worth(count, report.samples) for count in (found.worth_mean, found.worth_std))
    told = f"<b>{formatting.number(found.eps_mean)}</b><small>standard deviations off, like the means of {means} draws"
    assert f"<span>Means</span>{told}" in page
    told = f"<b>×{formatting.number(found.eps_std)}</b><small>of the true ones, as good as those of {deviations} draws"
    assert f"<span>Deviations</span>{told}" in page


def test_the_page_has_every_part(report):
    page = report.to_html()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == ["What was found", "What to do next", "Layer by layer", "Output units", "Class probabilities",
                      "Price and reliability", "All numbers", "How this was made"]  # fmt: skip
    assert page.count("Draws of output unit") == 3 * 10
    assert page.count("Class probabilities of input") == 3
    assert "momentprop.check(Sequential, Tensor(4, 1, 8, 8), input_variance=0.05, dropout=True" in page
    assert f"torch {torch.__version__}" in page


def test_running_text_has_words_and_no_names_of_figures(report):
    names = r"eps_|kl_|rms_|floor|σ"
    assert not re.search(names, report.summary)
    page = Elements(report.to_html().partition("<h2>All numbers")[0])
    assert not re.search(names, page.text.rpartition("</style>")[2].partition("What was found")[2])


def test_an_input_is_shown_without_and_with_its_noise(report):
    for example in report.examples:
        assert example.picture != example.noisy
        found = Elements(html.output_units(example, report.methods))
        sources = [value for tag, name, value in found.attributes if (tag, name) == ("img", "src")]
        assert sources == [example.picture, example.noisy]


def test_what_is_read_in_an_input_has_its_two_likeliest_classes(report):
    example = report.examples[0]
    read = sentences.readings(report, example)
    assert list(read) == ["the plain network", "100 draws on average", "ap2, without drawing"]
    shares = dict(zip((unit.name for unit in example.units), example.probabilities["sampled"], strict=True))
    first, second = sorted(shares, key=shares.get, reverse=True)[:2]
    assert (
        read["100 draws on average"]
        == f"{first} ({100 * shares[first]:.0f} %), {second} ({100 * shares[second]:.0f} %)"
    )


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_SIZES = """
const charts = [...document.querySelectorAll("main svg.chart")].map(c => c.getBoundingClientRect());
return {
  count: charts.length,
  smallest: Math.min(...charts.map(c => Math.min(c.width, c.height))),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  summary: document.querySelector(".scroll").scrollWidth - document.querySelector(".scroll").clientWidth,
};"""
_SORTED = """
const table = document.querySelector("table"), heads = [...table.tHead.rows[0].cells];
const names = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
const by = title => { heads.find(head => head.textContent === title).click(); return names(); };
return {passes: by("passes"), reverse: by("passes"), spread: by("spread"), method: by("method"),
        sorted: heads.map(head => head.getAttribute("aria-sort")).filter(Boolean)};"""
_POINTED = """
const told = chart => {
  const box = chart.getBoundingClientRect();
  const at = {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true};
  chart.dispatchEvent(new PointerEvent("pointermove", at));
  return document.getElementById("tip").hidden ? null : document.getElementById("tip").textContent;
};
const away = told(document.querySelector("h1"));
const hide = document.querySelector(".legend [data-method=m1]");
hide.click();
return {away, unit: told(document.querySelector(".units .chart")), mark: told(document.querySelector(".pair .mark")),
        hidden: hide.closest("section").querySelectorAll(".off").length};"""


def _asked(page, script, path, width=1200):
    """What a script answers in a page; it runs in a copy without the policy that forbids it."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", page)
    asked = f'<pre id="probe"></pre><script>(() => {{ const answer = (() => {{{script}}})();' + (
        'document.getElementById("probe").textContent = JSON.stringify(answer); })();</script></body>'
    )
    path.write_text(text.replace("</body>", asked), encoding="utf-8")
    return json.loads(unescape(re.search(r'<pre id="probe">(.*?)</pre>', _browse(path, width).stdout, re.DOTALL)[1]))


def _browse(path, width):
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent / 'profile'}"]
    arguments += ["--enable-logging=stderr", "--v=0", f"--window-size={width},900", "--dump-dom", path.as_uri()]
    return subprocess.run([CHROMIUM, *arguments], capture_output=True, text=True, check=True, timeout=60)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_all_charts_without_an_error(report, tmp_path, width):
    path = report.save_html(tmp_path / "report.html")
    shown = _browse(path, width)
    assert "CONSOLE" not in shown.stderr
    assert shown.stdout.count('class="chart"') == path.read_text(encoding="utf-8").count('class="chart"')
    found = _asked(path.read_text(encoding="utf-8"), _SIZES, tmp_path / "asked.html", width)
    assert found["count"] == shown.stdout.count('class="chart"')
    assert found["smallest"] > 50
    assert found["overflow"] <= 0
    assert found["summary"] <= 0  # the table of the output fits without scrolling


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")
def test_a_click_sorts_a_table_with_what_has_no_number_last(report, tmp_path):
    found = _asked(report.to_html(), _SORTED, tmp_path / "asked.html")
    methods, noise = report.methods, "noise of draws"
    prices = {name: float(formatting.number(report.cost[name].measured)) for name in methods}
    for names, sign in ((found["passes"], 1), (found["reverse"], -1)):
        assert names[-1] == noise
        assert [prices[name] for name in names[:-1]] == sorted(prices.values(), key=lambda price: sign * price)
    assert found["spread"][-1] == "ap1"
    assert found["method"] == [*methods, noise]  # as they came
    assert found["sorted"] == ["ascending"]


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")
def test_pointing_at_a_chart_tells_its_numbers_and_a_legend_hides_a_method(report, tmp_path):
    found = _asked(report.to_html(), _POINTED, tmp_path / "asked.html")
    assert found["away"] is None
    unit = report.examples[0].units[0]
    lines = found["unit"].splitlines()
    assert lines[:2] == [f"Draws of output unit {unit.name}",
                         f"draws: {formatting.number(unit.loc, 3)} ± {formatting.number(unit.stddev)}"]  # fmt: skip
    assert [line.partition(":")[0] for line in lines[2:]] == report.methods
    assert re.fullmatch(r"0\nap1: means off by [\d.]+ standard deviations", found["mark"])
    assert found["hidden"] >= 2 * len(report.rows)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")
def test_a_browser_runs_nothing_that_a_name_says(evil_report, tmp_path):
    shown = _browse(evil_report.save_html(tmp_path / "evil.html"), 800)
    assert shown.stdout.count("<script") == 1  # ours
    assert "CONSOLE" not in shown.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")
def test_a_browser_refuses_every_script_but_ours(report, tmp_path):
    path = tmp_path / "report.html"
    theirs = "<script>document.body.id = 'theirs'</script></body>"
    path.write_text(report.to_html().replace("</body>", theirs), encoding="utf-8")
    shown = _browse(path, 800)
    assert 'id="theirs"' not in shown.stdout
    assert 'id="tip"' in shown.stdout  # ours has run
