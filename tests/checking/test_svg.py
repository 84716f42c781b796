"""Drawings: well formed, inside their frame, with round ticks."""

import re
from xml.etree import ElementTree

import pytest

from momentprop.checking import svg
from momentprop.checking.svg import Scale


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
