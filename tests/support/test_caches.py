"""Where the caches lie: at an absolute place of the user's, or nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap_train._support import caches


@pytest.mark.parametrize(
    ("xdg", "home", "expected"),
    [
        ("/xdg", "/home/u", "/xdg/overlap_train"),
        (None, "/home/u", "/home/u/.cache/overlap_train"),
        ("", "/home/u", "/home/u/.cache/overlap_train"),
        ("relative", "/home/u", "/home/u/.cache/overlap_train"),
        (None, "relative", None),
        (None, "", None),
    ],
)
def test_the_cache_lies_at_an_absolute_place_or_nowhere(monkeypatch, xdg, home, expected):
    for name, value in (("XDG_CACHE_HOME", xdg), ("HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    found = caches.cache_home()
    assert (None if found is None else str(found)) == expected


def test_a_user_whom_the_system_does_not_know_has_no_cache(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert caches.cache_home() is None


def test_each_cache_has_a_place_of_its_own(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("OVERLAP_TRAIN_CACHE_DIR", raising=False)
    kinds = (caches.plan_times, caches.convolution_times, caches.copy_times, caches.convolution_builds)
    places = [kind() for kind in kinds]
    assert len(set(places)) == len(kinds)
    assert {place.parent for place in places} == {Path("/xdg/overlap_train")}
    monkeypatch.setenv("OVERLAP_TRAIN_CACHE_DIR", "/builds")
    assert caches.convolution_builds() == Path("/builds/conv")
    assert caches.plan_times() == places[0]


def test_without_a_home_there_is_none(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("OVERLAP_TRAIN_CACHE_DIR", raising=False)
    assert caches.plan_times() is caches.convolution_builds() is None
