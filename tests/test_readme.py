"""Every command of the README runs as it stands, on small copies of what it names."""

import shlex
from pathlib import Path

import pytest
from support.examples import sampled
from support.readme import NOT_RUN, ROOT, blocks, commands, shrunk_checkout

from archsim.cli.main import main, parser_of

# Several seconds each: with them, the nightly profile runs every command.
LONG = {"configs/dojo.yaml", "--papers", "--ablate", "--search", "examples/mine.yaml", "systems.0.d2d.bandwidth=2TB/s"}
COMMANDS = [words for words in commands("README.md") if words[0] not in NOT_RUN]
PAGES = ("README.md", "docs/start.md", "docs/commands.md")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return shrunk_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(autouse=True)
def there(checkout, monkeypatch):
    monkeypatch.chdir(checkout)


def test_the_readme_has_commands_and_python():
    assert {words[0] for words in COMMANDS} == {"archsim"} and len(COMMANDS) >= 15
    assert len(blocks("README.md", "python")) == 1


@pytest.mark.parametrize(
    "words",
    sampled(COMMANDS, lambda words: words[1] == "check" or not set(words) & LONG),
    ids=lambda words: shlex.join(words)[:60],
)
def test_a_command_of_the_readme_runs(words, capsys):
    """In their order: a command may use what an earlier one wrote."""
    assert main(words[1:]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_the_python_of_the_readme_runs(capsys):
    (code,) = blocks("README.md", "python")
    exec(compile(code, "README.md", "exec"), {})
    assert "bounded_by" in capsys.readouterr().out
    assert Path("reports/from_python/index.html").is_file()


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_name_files_that_ship(page):
    """Or that an earlier command of the page writes."""
    written, missing, seen = set(), [], 0
    for words in (words for words in commands(page) if words[0] == "archsim"):
        parser_of(given := words[1:]).parse_args(given)  # which takes the flag of a form out
        seen += 1
        outs = [words[n + 1] for n, word in enumerate(words) if word in ("--out", "--timeline")]
        paths = [word for word in words[1:] if "/" in word and not word.endswith("/s") and "=" not in word]
        missing += [path for path in paths if path not in written and not (ROOT / path).exists() and path not in outs]
        written |= set(outs)
    assert seen > 0 and [path for path in missing if not path.startswith("reports/")] == []
