"""Names come from outside: no report lets one of them act."""

from __future__ import annotations

import re

import msgspec
from hostile_records import hostile_diagnosis
from loops import for_each

from layoutdoctor.reports import render
from layoutdoctor.reports.markdown import escape
from layoutdoctor.reports.sections.wording import clean

HOSTILE = "\x1b[31mred\x07\r\nnew | line `code` <script>alert(1)</script> </details> [x](y) *b* \u202e\u2028 ```"
STORIES = ("gain_with_findings", "failures_and_same", "static_target", "trace_with_round_trips")


@for_each("story", STORIES)
def test_a_name_cannot_act_in_any_text(story: str) -> None:
    diagnosis = hostile_diagnosis(story, HOSTILE)
    text, markdown = render(diagnosis), render(diagnosis, "markdown")
    outside_code = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", markdown)

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", text + markdown)
    assert not [line for line in text.splitlines() if line.startswith("new |")]
    assert "\\x1b[31mred\\x07 new" in text
    assert "<script" not in outside_code
    assert "<pre>" not in outside_code
    assert outside_code.count("<details>") == outside_code.count("</details>")
    assert msgspec.json.decode(render(diagnosis, "json"))["subject"]["name"].startswith(HOSTILE)


def test_what_cannot_be_printed_is_shown_as_its_escape_and_markup_as_text() -> None:
    assert clean("a\x1b[0m\tb\n\nc\u202e") == "a\\x1b[0m b c\\u202e"
    assert clean("x" * 20, 10) == "xxxxxxx..."
    assert clean("Größe → 変換") == "Größe → 変換"
    assert escape("a|b `c` <d> *e* [f](g) _h_ i_j & \\") == (
        "a\\|b \\`c\\` &lt;d&gt; \\*e\\* \\[f\\](g) \\_h\\_ i_j &amp; \\\\"
    )
