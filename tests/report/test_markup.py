from __future__ import annotations

from hypothesis import example, given, strategies as st

from recollect.report.markup import _PERCENT, Markup, breakable, clean, element, join, name_of, table
from report.report_runs import read_page

# Half surrogates stand for bytes of file names that are not text, and must not stop a report.
any_text = st.text(st.characters(exclude_categories=()))


@given(any_text)
def test_text_is_shown_and_never_acts(text: str) -> None:
    page = read_page(element("p", text, title=text))
    assert page.tags == [("p", {"title": clean(text)})]
    assert "".join(page.text) == clean(text)
    element("p", text).encode("utf-8")


@given(any_text)
def test_text_in_a_template_is_shown_and_never_acts(text: str) -> None:
    page, words = read_page(table([text], [[text]], caption=text)), _PERCENT.sub("\u00a0", clean(text))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in read_page(table(["a"], [["a"]], caption="a")).tags]
    assert "".join(page.text) == 3 * words
    assert page.tags[0][1]["aria-label"] == words


@given(any_text)
@example("\u202e\u2066\x00\x1b")
def test_nothing_that_turns_text_around_is_left(text: str) -> None:
    assert not set(clean(text)) & {"\u202e", "\u2066", "\x00", "\x1b"}
    assert len(clean(text)) == len(text)


def test_markup_is_kept_in_elements_but_not_trusted_in_attributes() -> None:
    assert element("p", element("b", "x")) == "<p><b>x</b></p>"
    assert element("p", title=Markup('"><script>')) == '<p title="&quot;&gt;&lt;script&gt;"></p>'


def test_children_and_attributes() -> None:
    assert element("a", ["x", None, ["y"]], href="#1", class_="k", hidden=True, title=None, alt=False) == (
        '<a href="#1" class="k" hidden>xy</a>'
    )
    assert element("img", src="a") == '<img src="a">'
    assert element("circle", r=1) == '<circle r="1"/>'
    assert element("circle", element("title", "t"), r=1) == '<circle r="1"><title>t</title></circle>'
    assert join("<", Markup("<b>")) == "&lt;<b>"


def test_a_number_stays_with_its_percent_sign_but_names_stay_as_they_are() -> None:
    assert element("p", "70 % of 30 %, in %") == "<p>70\u00a0% of 30\u00a0%, in %</p>"
    assert name_of("70 %") == "<bdi>70 %</bdi>"
    assert breakable("a/70 %") == "<bdi>a/<wbr>70 <wbr>%</bdi>"


def test_tables_have_captions_and_scopes() -> None:
    page = read_page(table(["a", "b"], [["<x>", "1"]], caption="what"))
    assert [tag for tag, _ in page.tags].count("caption") == 1
    assert [attributes["scope"] for _, attributes in page.tags if "scope" in attributes] == ["col", "col", "row"]
    assert "<x>" in page.text
