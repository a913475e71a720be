"""What the tests of several commands need."""

import json

import pytest

from overlap_train.cli.main import main


@pytest.fixture
def told(capsys):
    """Runs a command, whose status is one of these, and returns its findings by section and name."""

    def run(command, *arguments, statuses=(0,)):
        assert main([command, "--json", *map(str, arguments)]) in statuses
        sections = json.loads(capsys.readouterr().out)["sections"]
        return {title: {found["name"]: found for found in section} for title, section in sections.items()}

    return run
