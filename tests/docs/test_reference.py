"""The reference is complete: every public name is on one of its pages, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

import overlap_train
from overlap_train import models
from tests.docs.pages import DOCS
from tests.docs.site import inventory

ROOMS = ("conv", "errors", "monitoring", "options", "parallel", "records", "routing", "scheduling", "trainer")
MODELS = [f"models.{module.name}" for module in pkgutil.iter_modules(models.__path__)]
_DIRECTIVE = re.compile(r"^::: (?P<name>[\w.]+)$", re.M)


def public():
    """Yields each public name once for each place from which it may be imported."""
    for place in ("overlap_train", *(f"overlap_train.{room}" for room in (*ROOMS, "zero_copy", *MODELS))):
        for name in importlib.import_module(place).__all__:
            yield f"{place}.{name}"


def find(name):
    module, _, rest = name.rpartition(".")
    return importlib.import_module(name) if not module else getattr(importlib.import_module(module), rest)


def identity(name):
    """Returns what a name means, or the name itself where values of several names may be equal."""
    value = find(name)
    return value if inspect.isclass(value) or inspect.isroutine(value) else name


def documented():
    return [name for page in DOCS.glob("reference/*.md") for name in _DIRECTIVE.findall(page.read_text())]


def test_every_public_name_is_in_the_reference():
    known = {identity(name) for name in documented() if not inspect.ismodule(find(name))}
    named = {"overlap_train.__version__", "overlap_train.errors"}  # a text, and a page of its own
    missing = [name for name in public() if name not in named and identity(name) not in known]
    assert not missing, f"not in docs/reference: {missing}"


def test_the_reference_has_only_public_names_and_each_once():
    names = documented()
    known = {identity(name) for name in public()}
    assert sorted(names) == sorted(set(names))
    assert [n for n in names if n != "overlap_train.errors" and identity(n) not in known] == []


def test_the_site_documents_what_the_pages_name(site):
    assert set(documented()) - inventory(site) == set()


@pytest.mark.parametrize(
    ("page", "method"),
    [("trainer", "overlap_train.Trainer.fit"), ("zero_copy", "overlap_train.zero_copy.MappedBuffer")],
)
def test_signatures_have_types_and_sources(site, page, method):
    html = (site / "reference" / f"{page}.html").read_text()
    assert f'id="{method}"' in html
    assert "Source code in <code>overlap_train/" in html
    parameters = [p for p in inspect.signature(find_in(method)).parameters if p != "self"]
    text = re.sub(r"<[^>]+>", "", html)
    assert [p for p in parameters if not re.search(rf"\b{p}:", text)] == []


def find_in(name):
    value = overlap_train
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value
