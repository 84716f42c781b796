"""The report: tables, JSON, figures, and a page that a browser shows without errors and that nobody can inject into."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from momentprop import check
from momentprop.checking import formatting, svg
from momentprop.checking.svg import Scale

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def report():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(108, 10)).eval()
    x = torch.rand(4, 1, 8, 8)
    return check(model, x, input_variance=0.05, dropout=True, samples=100, methods=("ap1", "ap2", "ap2-logistic"))


@pytest.fixture(scope="module")
def evil_report():
    class Evil(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(EVIL, nn.Linear(4, 3))
            self.add_module("a | b`\"'&", nn.ReLU())

        def forward(self, x):
            for module in self.children():
                x = module(x)
            return {"logits": x, EVIL: x * 2}

    Evil.__name__ = f"Evil{EVIL}"
    names = [EVIL, '" onload="alert(1)', "'><img src=x onerror=alert(1)>"]
    methods = ["ap1", (EVIL, {})]
    return check(Evil(), torch.randn(3, 4), input_variance=0.1, samples=30, methods=methods, class_names=names)


def test_the_numbers_are_found_by_module_method_and_figure(report):
    numbers = json.loads(report.to_json())
    assert numbers == json.loads(json.dumps(report.to_dict()))
    found = numbers["modules"]["4"]["methods"]["ap2"]
    assert found["eps_mean"] == report["4"].methods["ap2"].eps_mean
    assert set(found) >= {"eps_mean", "eps_std", "rms_log_std", "correlation", "coverage", "worth_mean", "worth_std"}
    assert set(numbers["posterior"]["methods"]["ap2"]) == {"kl_simplified", "kl_logistic", "kl_race"}
    assert numbers["modules"]["4"]["methods"]["ap1"]["eps_std"] is None


def test_the_table_has_a_row_for_every_module(report):
    printed = str(report)
    for name, module in report.rows.items():
        cells = [row.split("|")[1:4] for row in printed.splitlines() if row.startswith(f"| {name} ")]
        assert [name, module.type, f"{module.total:,}"] == [cell.strip() for cell in cells[0]]
    assert report.summary in printed
    assert "kl_race: worth draws" in printed


def test_the_summary_says_how_good_the_method_is(report):
    found = report["output"].methods["ap2"]
    assert f"are off by {formatting.number(found.eps_mean)} standard deviations (ap1: " in report.summary
    assert re.search(r"That is the error of (more than )?\d+ Monte Carlo samples, for the price of", report.summary)
    assert re.search(r"its 90 % intervals hold [\d.]+ % of the draws", report.summary)


def test_markdown_keeps_names_as_code(evil_report):
    text = evil_report.to_markdown()
    assert f"`{EVIL}`" in text
    assert r"`a \| b'" in text
    tables = [line for line in text.splitlines() if line.startswith("|") and "Linear" in line]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in tables}) == 1
    assert evil_report._repr_markdown_() == text


def test_the_figure_has_a_point_for_every_module_and_method(report):
    pytest.importorskip("matplotlib")
    left, right = report.plot().axes
    assert [len(line.get_xdata()) for line in left.lines] == [len(report.rows)] * 3
    assert len(right.lines) == 2
    assert [label.get_text() for label in left.get_yticklabels()] == list(report.rows)


def test_a_missing_matplotlib_is_named(report, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "momentprop\[plots\]"'):
        report.plot()


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


def test_the_page_has_every_part(report):
    page = report.to_html()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == ["Layer by layer", "Output units", "Class probabilities", "Price and reliability", "All numbers",
                      "How this was made"]  # fmt: skip
    assert page.count("Draws of output unit") == 3 * 10
    assert page.count("Class probabilities of input") == 3
    assert "momentprop.check(Sequential, Tensor(4, 1, 8, 8), input_variance=0.05, dropout=True" in page
    assert f"torch {torch.__version__}" in page


def test_every_drawing_is_well_formed_and_stays_inside(report):
    drawings = re.findall(r"<svg.*?</svg>", report.to_html())
    assert len(drawings) > 30
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        _, _, width, height = map(float, root.get("viewBox").split())
        for part in root.iter():
            for name, most in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height)):
                assert 0 <= float(part.get(name, 0)) <= most + 0.01, part.attrib
        assert "nan" not in drawing
        assert "inf" not in drawing


def test_a_scale_has_round_ticks_inside():
    assert Scale(0.02, 3, 0, 100, log=True).ticks() == pytest.approx([0.03, 0.1, 0.3, 1, 3])
    assert Scale(0, 1, 0, 100).ticks() == [0, 0.2, 0.4, pytest.approx(0.6), 0.8, 1.0]
    assert Scale(1e-9, 1e9, 0, 1, log=True).ticks(4) == [1e-9, 1e-4, 10.0, 1e6]
    assert Scale(1, 100, 0, 10, log=True)(10) == pytest.approx(5)
    assert Scale(0, 1, 5, 10)(7) == 10


def test_elements_escape_what_is_no_markup():
    inner = svg.element("b", "1 < 2")
    assert svg.element("p", inner, "&", title='"<') == '<p title="&quot;&lt;"><b>1 &lt; 2</b>&amp;</p>'


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
