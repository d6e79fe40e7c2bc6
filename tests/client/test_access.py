"""What reaches a server: the origins of web pages."""

import pytest

from keras_transformer.client.access import checked_origins


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "my.site", "https://my.site/", "https://My.site", "https://my.site:443", "http://a:0", "http://*.a",
     "http://a:70000", "ftp://a", "https://a b", "https://a\n", "https://me@my.site", "", b"https://a", None],
)  # fmt: skip
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(ValueError, match="must be a list of origins as browsers send them"):
        checked_origins([origin])


def test_origins_of_browsers_are_taken():
    origins = [
        "https://my.site", "http://127.0.0.1:8080", "http://[::1]:8080", "http://localhost",
        "https://xn--a.b:1",
    ]  # fmt: skip
    assert checked_origins(origins) == tuple(origins)


def test_a_string_is_no_list_of_origins():
    with pytest.raises(ValueError, match="must be a list of origins"):
        checked_origins("https://my.site")
