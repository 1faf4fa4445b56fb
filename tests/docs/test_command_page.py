"""The page about the command is what the command says."""

from __future__ import annotations

import pytest

from fleets.agent import config as agent
from tests.docs.command_page import PAGE, page


def test_the_page_is_what_the_command_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make command-docs`"


def test_a_wrong_flag_of_a_program_gets_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in ((["--contrl", "x"], "Did you mean `--control`?"), (["--zzz"], "`denv agent --help` lists the flags.")):
        with pytest.raises(SystemExit) as ended:
            agent.parse_config(words)
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said.count("\n") == 1 and said.strip().endswith(meant)
