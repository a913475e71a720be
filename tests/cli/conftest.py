"""What a command of the command line says of a script."""

from __future__ import annotations

import json

import pytest

from overlap_train.cli.main import main
from tests.cli.test_script import HEAD


@pytest.fixture
def told(tmp_path, capsys):
    """Returns what a command says of a script, as a dict, and its exit status."""

    def run(command, body):
        path = tmp_path / "training.py"
        path.write_text(HEAD + body)
        status = main([command, "--json", str(path)])
        output = capsys.readouterr()
        return status, json.loads(output.out) if output.out else output.err

    return run


def findings(report, section):
    return {finding["name"]: finding for finding in report["sections"][section]}
