"""The page: whole by itself, shown without errors, and nobody can inject into it."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
import torch

from momentprop.checking import formatting
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
    assert "script" not in found.tags
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert EVIL in found.text
    assert "'><img src=x onerror=alert(1)>" in found.text
    assert '" onload="alert(1)' in found.text


def test_the_page_needs_nothing_from_outside(report):
    found = Elements(report.to_html())
    assert not {"script", "link", "iframe", "object", "embed"} & set(found.tags)
    sources = [value for _, name, value in found.attributes if name in ("src", "href", "srcset")]
    assert len(sources) == 3  # the pictures of the inputs
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "url(" not in report.to_html()
    assert "http://" not in report.to_html()
    assert "https://" not in report.to_html()


def test_the_cards_tell_the_worth_of_means_and_of_deviations(report):
    page, found = report.to_html(), report.at_output(report.chief)
    for count, what in ((found.worth_mean, "means"), (found.worth_std, "deviations")):
        big = formatting.brief_worth(count, report.samples).replace(">", "&gt;")
        assert f"<b>{big}</b><span>draws have the same error</span><small>of the {what}</small>" in page


def test_the_page_has_every_part(report):
    page = report.to_html()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == ["Layer by layer", "Output units", "Class probabilities", "Price and reliability", "All numbers",
                      "What to do next", "How this was made"]  # fmt: skip
    assert page.count("Draws of output unit") == 3 * 10
    assert page.count("Class probabilities of input") == 3
    assert "momentprop.check(Sequential, Tensor(4, 1, 8, 8), input_variance=0.05, dropout=True" in page
    assert f"torch {torch.__version__}" in page


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_PROBE = """<pre id="probe"></pre><script>
const charts = [...document.querySelectorAll("main svg.chart")].map(c => c.getBoundingClientRect());
const wide = document.documentElement.scrollWidth;
document.getElementById("probe").textContent = JSON.stringify({
  count: charts.length,
  smallest: Math.min(...charts.map(c => Math.min(c.width, c.height))),
  overflow: wide - document.documentElement.clientWidth,
});
</script>"""


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
    # the sizes are asked by a script in a copy without the policy that forbids scripts
    text = re.sub(r"<meta http-equiv[^>]*>", "", path.read_text(encoding="utf-8"))
    probed = tmp_path / "probed.html"
    probed.write_text(text.replace("</body>", f"{_PROBE}</body>"), encoding="utf-8")
    found = json.loads(re.search(r'<pre id="probe">(.*?)</pre>', _browse(probed, width).stdout)[1])
    assert found["count"] == shown.stdout.count('class="chart"')
    assert found["smallest"] > 50
    assert found["overflow"] <= 0


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")
def test_a_browser_runs_nothing_that_a_name_says(evil_report, tmp_path):
    shown = _browse(evil_report.save_html(tmp_path / "evil.html"), 800)
    assert "<script" not in shown.stdout
    assert "CONSOLE" not in shown.stderr
