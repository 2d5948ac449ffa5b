"""Commands parse, call and print; those of one topic share a module, imported only when one of them is invoked."""

import ast
import errno
import importlib
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from support.tiny import tiny_file

import archsim.cli
import archsim.cli.new
from archsim.api import exploration_of, overridden
from archsim.base import verbs
from archsim.base.answer import Answer, Grid
from archsim.base.code_digest import SHIPPED_FOR, code_is_for
from archsim.base.errors import ArchsimError
from archsim.base.files import write_text
from archsim.cli import compile, printing
from archsim.cli import compile as compiling
from archsim.cli.list import SCRIPTS, completions
from archsim.cli.main import COMMANDS, OLD, every_command, main, parser_of
from archsim.runs.plan import select
from archsim.show.units import BYTE_UNITS, SCALES, TIME_UNITS, with_unit
from archsim.specs.library import load_planned
from archsim.specs.serving_files import load_serving

FOLDER = Path(archsim.cli.__file__).parent
EVERY = dict(every_command())
NAMES = sorted(set(EVERY.values()))
MODULES = sorted({f"archsim.cli.{name.partition(':')[0]}" for name in NAMES})
SHARED = {
    f"archsim.cli.{name}"
    for name in ("arguments", "heartbeat", "import_progress", "printing", "progress", "streams", "sweep_tables")
}
OF_ONE_COMMAND = {"archsim.cli.main"}  # completion


def imported_by(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} | {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_command_has_options_and_a_function(name):
    module, _, action = name.partition(":")
    found = importlib.import_module(f"archsim.cli.{module}")
    adds = getattr(found, f"add_{action or module}", None)
    assert (adds is None) == (name in verbs.OF_COMMANDS)
    assert adds is None or list(inspect.signature(adds).parameters) == ["parser"]
    assert list(inspect.signature(getattr(found, f"run_{action or module}")).parameters) == ["args"]


@pytest.mark.parametrize("name", MODULES)
def test_no_module_of_commands_imports_another(name):
    of_commands = {each for each in imported_by(importlib.import_module(name)) if each.startswith("archsim.cli.")}
    assert of_commands <= SHARED | OF_ONE_COMMAND


def test_every_file_is_of_commands_or_shared():
    names = {f"archsim.cli.{file.stem}" for file in FOLDER.glob("*.py") if file.stem != "__init__"}
    assert names == {*MODULES, *SHARED, "archsim.cli.main"}


def test_commands_have_different_names_and_help():
    assert len(EVERY) == len(list(every_command()))
    described = [each for entry in COMMANDS for each in (entry, *getattr(entry, "forms", ()))]
    assert all(each.help and not each.help.endswith(".") for each in described)


def test_a_dozen_or_so_are_shown_and_alone_archsim_says_where_to_start(capsys):
    assert main([]) == 0
    alone = capsys.readouterr().out
    shown = [line.split()[0] for line in alone.splitlines() if line.startswith("  ") and not line.startswith("  -")]
    assert {each.name for each in COMMANDS} <= set(shown) and len(COMMANDS) <= 15
    assert "Start here:" in alone and not any(f"  {old} " in alone for old in OLD)


def test_no_form_takes_an_option_of_its_command():
    """``archsim why FILE --assumptions physical`` chooses a set: no form may be asked for by such a flag."""
    taken = []
    for command in COMMANDS:
        for form in getattr(command, "forms", ()):
            (own,) = (each for each in parser_of([command.name])._actions if each.choices)
            taken += [form.flag for action in own.choices[command.name]._actions if form.flag in action.option_strings]
    assert taken == []


@pytest.mark.parametrize("old", OLD)
def test_an_old_spelling_is_the_new_command_and_says_so(old, capsys, monkeypatch):
    helps = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for words in (old, OLD[old]):
        with pytest.raises(SystemExit) as ended:
            main([*words.split(), "--help"])
        found = capsys.readouterr()
        helps.append(found.out)
        assert ended.value.code == 0 and (f"`archsim {OLD[old]}`" in found.err) == (words == old)
    assert helps[0] == helps[1] and f"archsim {OLD[old]}" in helps[0]


def test_only_the_invoked_command_is_imported():
    code = (
        "import sys; from archsim.cli.main import main\n"
        "try: main(['trace', 'info', '--help'])\nexcept SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith('archsim.cli.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = set(loaded.splitlines()[-1].split())
    assert modules & set(MODULES) == {"archsim.cli.trace"}


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        archsim.cli.main.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"archsim {archsim.__version__}\n"


# ---- Completion of commands, options and names, as the scripts of the shells ask for it.


@pytest.mark.parametrize(("line", "found"), [
    ("swe", ["sweep"]),
    ("sweep explo", ["explore_dojo", "explore_spares"]),
    ("sweep dojo --sched", ["--scheduler"]),
    ("trace im", ["import"]),
    ("list sys", ["systems"]),
    ("new mo", ["model"]),
    ("run dojo --policy allo-", ["allo-paper", "allo-lp"]),
    ("run dojo --model deepseek-v3", ["deepseek-v3", "deepseek-v3.2"]),
    ("place x.npz --system isca26_d", ["isca26_dojo"]),
    ("validate --with h2", ["h20", "h200"]),
    ("nothing he", []),
    ("sweep --sea", ["--search"]),
    ("sweep --search explo", ["explore_dojo", "explore_spares"]),
    ("sweep dojo --search --fi", []),
    ("compare --pa", ["--papers"]),
    ("compare --papers wafer li", ["libra", "lina"]),
    ("compare a.yaml gb2", ["gb200_nvl72"]),
    ("recommend deepseek-v3", ["deepseek-v3", "deepseek-v3.2"]),
    ("recommend qwen3-32b --on h20", ["h200", "h20", "h200_cluster", "h200_node", "h20_cluster"]),
    ("recommend qwen3-32b --on h200 --engine v", ["vllm"]),
    ("recommend --on h200 qwen3-32b --best ", ["throughput", "price", "energy"]),
    ("compare --without pre", ["prediction"]),
])  # fmt: skip
def test_a_word_is_completed(line, found):
    words = line.split(" ")
    assert completions(words, len(words)) == found


def test_a_new_word_after_the_last():
    assert {"import", "synth"} <= set(completions(["trace"], 2))


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_valid(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "archsim list --completion --words" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, check=False).returncode == 0


def test_bash_completes(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    (tmp_path / "archsim").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m archsim.cli.main "$@"\n')
    (tmp_path / "archsim").chmod(0o755)
    asked = "COMP_WORDS=(archsim swe); COMP_CWORD=1; _archsim; echo ${COMPREPLY[@]}"
    code = f'PATH="{tmp_path}:$PATH"; source <(archsim list --completion bash); {asked}'
    ended = subprocess.run([bash, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ended.stdout.split() == ["sweep"], ended.stderr


def test_a_shell_is_needed(capsys):
    assert main(["completion"]) == 2
    assert "bash, zsh or fish" in capsys.readouterr().err


# ---- Tables in a narrow terminal.


@pytest.mark.parametrize(
    ("width", "left_out"), [(120, ""), (40, "topology, bandwidth"), (24, "rate, topology, bandwidth")]
)
def test_a_narrow_terminal_keeps_the_first_columns(monkeypatch, capsys, width, left_out):
    monkeypatch.setattr(printing, "console", lambda: Console(width=width))
    table = printing.grid("point", "model", numbers=("rate",))
    table.add_column("topology")
    table.add_column("bandwidth")
    table.add_row("17", "deepseek-v3", "416,197", "fully_connected", "826.002 GB/s")
    printing.print_fitting(table, kept=2)
    printed = capsys.readouterr().out
    assert "point" in printed and "model" in printed and ("bandwidth" in printed.splitlines()[1]) == (not left_out)
    assert printed.rstrip().endswith(f"is too narrow for these columns: {left_out}." if left_out else "GB/s")


def test_nothing_has_the_plain_unit():
    assert [with_unit(0, units).split("\u00a0") for units in (BYTE_UNITS, TIME_UNITS, SCALES)] == [
        ["0", "B"], ["0", "ns"], ["0", ""],
    ]  # fmt: skip


def test_force_without_a_folder_says_what_it_needs(capsys):
    for words in (["sweep", "dojo"], ["why", "--bound", "dojo"], ["serve", "serve_h200"]):
        assert main([*words, "--force"]) == 2
        said = capsys.readouterr().err
        assert "--force: it lets archsim write among the files of the folder that --out names. Give --out DIR" in said


# ---- ``--out`` into a folder that archsim did not make: refused, and nothing there is touched, unless ``--force``.

FOREIGN_COMMANDS = (
    "sweep tiny.yaml",
    "ablate tiny.yaml --set assumptions=[published]",
    "optimum tiny.yaml",
    "compare dojo h200_node",
    "serve serve_h200",
    "serve serve_h200 --search",
    "place loads.npz --model deepseek-v3 --system h200_node",
    "trace profile loads.npz --model deepseek-v3",
    "explore explore_dojo",
)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder of the user's with results of another program."""
    monkeypatch.chdir(tmp_path)
    tiny_file(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "results.csv").write_text("of another program\n")
    return tmp_path / "mine"


@pytest.mark.parametrize("command", FOREIGN_COMMANDS, ids=str)
def test_files_of_others_are_not_touched(mine, capsys, command):
    assert main([*command.split(), "--out", "mine"]) == 2
    assert "mine: has files that archsim did not make, such as 'results.csv'" in capsys.readouterr().err
    assert [each.name for each in mine.iterdir()] == ["results.csv"]
    assert (mine / "results.csv").read_text() == "of another program\n"


def test_force_writes_among_them(mine):
    (mine / "notes.txt").write_text("mine\n")
    assert main([*"sweep tiny.yaml --set policies=[ep] --out mine --force --jobs 1 --samples 0".split()]) == 0
    assert (mine / "notes.txt").read_text() == "mine\n" and (mine / "index.html").exists()
    assert main(["sweep", "tiny.yaml", "--set", "policies=[ep]", "--out", "mine", "--jobs", "1", "--samples", "0"]) == 0


def test_a_report_without_its_lock_is_a_report(mine):
    (mine / "results.csv").write_text("")
    (mine / "manifest.yaml").write_text("manifest:\n  version: 0.1.0\nname: tiny\n")
    assert main(["sweep", "tiny.yaml", "--set", "policies=[ep]", "--out", "mine", "--jobs", "1", "--samples", "0"]) == 0


# ---- A full disk, a read-only or a removed folder end a command with a sentence, not with a traceback.

FULL = "/dev/full"


@pytest.mark.parametrize("number, file, said", [
    (errno.ENOSPC, None, "mine.yaml: No space left on device. What was finished before is kept. Make room"),
    (errno.EROFS, "other.yaml", "other.yaml: cannot be read or written: Read-only file system"),
    (errno.ENOENT, None, "mine.yaml: cannot be read or written: No such file or directory"),
])  # fmt: skip
def test_what_the_machine_refuses_is_said_in_a_sentence(monkeypatch, capsys, tmp_path, number, file, said):
    def fail(args):
        raise OSError(number, os.strerror(number), file)

    monkeypatch.setattr(archsim.cli.new, "run_new", fail)
    monkeypatch.chdir(tmp_path)
    assert main(["new", "system", "mine", "--out", "mine.yaml"]) == 2
    assert said in capsys.readouterr().err


def test_a_message_has_a_space_before_percent(monkeypatch, capsys):
    def fail(args):
        raise ArchsimError("x: 5% of 'all', --set y=7%")

    monkeypatch.setattr(archsim.cli.new, "run_new", fail)
    assert main(["new", "system", "mine"]) == 2
    assert "x: 5\u00a0% of 'all', --set y=7%" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["compare --without prediction --in e.yaml", "compare a b", "serve a"])
def test_a_comparison_takes_no_samples(words):
    words = [*words.split(), "--samples", "0"]
    assert parser_of(words).parse_args(words).samples == 0


def test_an_error_without_a_number_is_a_defect(monkeypatch):
    def fail(args):
        raise OSError("a message of the program")

    monkeypatch.setattr(archsim.cli.new, "run_new", fail)
    with pytest.raises(OSError, match="a message of the program"):
        main(["new", "system", "mine"])


@pytest.mark.skipif(not os.path.exists(FULL), reason=f"this system has no {FULL}")
def test_a_full_disk_behind_the_output():
    with open(FULL, "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "archsim", "list", "policies"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 2 and "No space left on device" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.skipif(not os.path.exists(FULL), reason=f"this system has no {FULL}")
@pytest.mark.parametrize("ends, status", [
    ("<&- >&- 2>&-", 0), (f">{FULL}", 2),
    *(pytest.param(*each, marks=pytest.mark.nightly) for each in (
        (">&-", 0), ("| true", 0), ("2>&-", 0), (f"2>{FULL}", 0), (f">{FULL} 2>&-", 2),
    )),
])  # fmt: skip
def test_a_command_ends_with_its_files_whatever_its_output_is(tmp_path, ends, status):
    words = f"{sys.executable} -m archsim new system mine --out mine.yaml --json {ends}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status and "Traceback" not in done.stderr and "ignored" not in done.stderr, done.stderr
    assert ("stdout: No space left" in done.stderr) == (status == 2 and "2>" not in ends)
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text())


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_an_encoding_lacks_is_replaced_and_escaped_in_json(monkeypatch, encoding):
    def told(words):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        assert main(words) == 0
        sys.stdout.flush()
        assert sys.stdout.errors == "strict"
        return sys.stdout.buffer.getvalue().decode(encoding)

    def run(args):
        print("5 × 5 → ∞")
        args.result = {"name": "5 × 5 → ∞"}
        return 0

    monkeypatch.setattr(archsim.cli.new, "run_new", run)
    assert told(["new", "system", "mine"]) == {"ascii": "5 ? 5 ? ?\n", "cp1252": "5 × 5 ? ?\n"}[encoding]
    assert json.loads(told(["new", "system", "mine", "--json"])) == {"name": "5 × 5 → ∞"}


def test_a_draft_that_cannot_be_removed_hides_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as raised:
        write_text(tmp_path / "file" / "below.txt", "text")
    assert raised.value.errno == errno.ENOTDIR


# ---- `archsim compile`: small commands that need all kernels, each in a process of its own.


@pytest.fixture
def asked(monkeypatch):
    commands = []

    def run(command, *, env, **_):
        commands.append((command[3:], env["ARCHSIM_CACHE"]))
        run.seen = env
        return subprocess.CompletedProcess(command, 3 if "reserved" in run.fails else 0, "", "no such thing")

    run.fails = ""
    monkeypatch.setattr(compiling.subprocess, "run", run)
    return commands, run


def test_each_part_runs_in_a_process_that_finds_no_results(asked, capsys):
    commands, _ = asked
    assert main(["compile", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert all(what in told for what in compile.RUNS) and "functions in" in told
    assert len({cache for _, cache in commands}) == len(commands) == len(compile.RUNS)


def test_code_that_travels_is_for_any_processor_and_says_what_it_is_for(asked, capsys, tmp_path):
    _, run = asked
    assert main(["compile", "--into", str(tmp_path / "code")]) == 0
    assert f"0 functions in {tmp_path / 'code'}" in capsys.readouterr().out  # as nothing ran
    assert json.loads((tmp_path / "code" / SHIPPED_FOR).read_text()) == code_is_for()
    assert run.seen["ARCHSIM_MACHINE_CODE"] == "0" and run.seen["NUMBA_CACHE_DIR"] != os.environ["NUMBA_CACHE_DIR"]


def test_a_part_that_fails_is_told(asked, capsys):
    asked[1].fails = "reserved"
    assert main(["compile", "--jobs", "1"]) == 2
    assert "ended with 3: no such thing" in capsys.readouterr().err


@pytest.mark.parametrize("what", compile.RUNS)
def test_parts_are_small_need_no_large_dependency_and_their_keys_exist(what, monkeypatch):
    verb, file, *changes = compile.RUNS[what]
    if verb == "explore":
        plan = exploration_of(overridden(file, changes)).plan
        assert plan.combinations == 64 and plan.experiment.workload.batch == (25,)
        return
    if verb == "serve_plan":
        assert load_serving(file, changes).given["requests"]["count"] <= 20
        for each in ("pandas", "scipy"):  # an installation that compiles does not have them
            monkeypatch.setitem(sys.modules, each, None)
        for each in [each for each in sys.modules if each.startswith(("pandas.", "scipy."))]:
            monkeypatch.setitem(sys.modules, each, None)
        monkeypatch.setattr(sys, "argv", ["-c", verb, file, *changes])
        exec(compile.ASKS)
        return
    runs = select(load_planned(file, changes)).runs()
    assert 5 <= len(runs) <= 10 and all(run.demand.selections < 1000 for run in runs)


# ---- A verb is declared once: its options are the parameters of its function.

VERBS = {
    each.replace("check:", ""): options for each, options in verbs.OF_COMMANDS.items() if each not in ("serve", "trust")
}
VERBS["engines"] = verbs.ENGINES
# Options of the command alone: another question, or what only a terminal asks for.
OF_COMMAND = {
    "force", "dry_run", "point", "phase", "law", "die_dies", "interpreted", "what", "inside", "out", "scheduler"
}  # fmt: skip


@pytest.mark.parametrize("name", VERBS)
def test_options_are_parameters_with_the_same_defaults(name):
    function = getattr(archsim, name)
    parameters = inspect.signature(function).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for option, about in VERBS[name].items():
        if option in OF_COMMAND or (open_ended and option not in parameters):
            continue
        if name in ("ablate", "engines", "worth") and option in ("overrides", "jobs"):  # of the loaded experiment
            continue
        if (name, option) in (("run", "samples"), ("explore", "samples")):  # `ar.sure`, a key of the file
            continue
        assert option in parameters, option
        default = parameters[option].default
        assert about.default is None or about.default == default, option
        if name != "worth":
            said = " ".join(function.__doc__.split())
            assert f"{option}: " in said, option
            if default is None and "reports/" not in about.help:  # what happens without it
                assert about.help.partition(" (default: ")[2].partition("--")[0].strip(". ") in said, option


@pytest.mark.parametrize(("words", "call", "option", "parameter"), [
    (["--best", "cheap"], {"objective": "cheap"}, "--best", "objective"),
    (["--engine", "vlm"], {"engines": ["vlm"]}, "--engine", "engines"),
    (["--tpot", "soon"], {"tpot": "soon"}, "--tpot", "tpot"),
    (["--usd", "0.01", "--price", "h200=5"], {"usd_per_hour": 0.01, "prices": {"h200": 5}}, "--usd", "usd_per_hour"),
])  # fmt: skip
def test_a_message_names_an_option_as_its_caller_knows_it(words, call, option, parameter, capsys):
    assert main(["recommend", "olmoe-1b-7b", "--on", "h200:1" if "--usd" not in words else "h200", *words]) == 2
    assert option in capsys.readouterr().err
    with pytest.raises(archsim.ArchsimError) as refused:
        archsim.recommend("olmoe-1b-7b", "h200" if "--usd" in words else "h200:1", **call)
    assert parameter in str(refused.value) and "--" not in str(refused.value)


def test_an_answer_is_shown_in_a_terminal_and_in_a_notebook(capsys):
    grid = Grid(
        ("name",), [("<a>", "1", "so"), None, ("sum", "1", "")], numbers=("value",), more=("why",), title="both"
    )
    found = Answer(("It is so.", grid), ("careful",), {"it": 1})
    printing.print_answer(found)
    said = capsys.readouterr()
    assert said.out.startswith("It is so.\n") and "<a>" in said.out and said.err == "note: careful.\n"
    html = found._repr_html_()
    assert "<p>It is so.</p>" in html and "&lt;a&gt;" in html and "<caption>both</caption>" in html
