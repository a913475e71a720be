"""The page of what a fit prints shows what it does print, in each of six places."""

import pytest

from tests.docs.captures import PAGE, PLACES, capture, missing, sections, shape


def test_the_page_has_each_place():
    assert list(sections(PAGE.read_text())) == list(PLACES)


@pytest.mark.nightly
@pytest.mark.parametrize("place", PLACES)
def test_a_capture_is_what_is_printed(place):
    if missing(place):
        pytest.skip(f"{', '.join(missing(place))} not installed")
    kept = sections(PAGE.read_text())[place]
    assert shape(capture(place)) == shape(kept), "run python -m tests.docs.captures"
