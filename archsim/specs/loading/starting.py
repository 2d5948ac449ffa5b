"""Commented files to start from: a system, a model, an experiment."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from archsim.base.errors import SpecError
from archsim.base.text.fields import Name

_FOLDER = Path(__file__).resolve().parents[1] / "starting"


def starting_text(kind: str, name: str) -> str:
    """A commented file. kind: system, model or experiment. Raises SpecError for text that is no name."""
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise SpecError(str(error.errors()[0]["ctx"]["error"])) from None
    return (_FOLDER / f"{kind}.yaml").read_text(encoding="utf-8").replace("name: NAME\n", f"name: {name}\n", 1)


def write_new(file: Path, text: str) -> None:
    """Write a file that does not exist yet. Raises SpecError if it does, or cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise SpecError(f"{file}: exists already; give another with --out") from None
    except OSError as error:
        raise SpecError(f"{file}: cannot be written: {error.strerror}") from None
