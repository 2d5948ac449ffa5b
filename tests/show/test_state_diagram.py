"""State diagrams of transition tables, as self-contained SVG."""

import xml.etree.ElementTree as ET

from support import decompressor

from archsim.show.state_diagram import state_diagram


def test_its_diagram_shows_the_new_state():
    drawn = ET.fromstring(state_diagram(decompressor.REQUEST))
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"EXPAND", "expand the slice", "expand_ns"} <= set(words)
