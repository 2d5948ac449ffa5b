"""Files of ``configs/papers``, by name or path."""

import os

from archsim.base.errors import SpecError
from archsim.base.nearest import did_you_mean
from archsim.base.text.validation import validate
from archsim.base.text.yaml import read_yaml
from archsim.specs.loading.config_files import named_files
from archsim.specs.loading.references import is_path
from archsim.specs.papers import PaperSpec


def paper_names() -> tuple[str, ...]:
    """Of all papers that ship or lie in ``./configs/papers``."""
    return tuple(named_files("papers"))


def load_paper(name: str | os.PathLike[str]) -> PaperSpec:
    """Raises SpecError for an unknown name, and with one line per problem of the file."""
    text = os.fspath(name)
    if is_path(text):
        return validate(PaperSpec, read_yaml(text))
    known = named_files("papers")
    if text not in known:
        raise SpecError(f"{text}: no paper of this name{did_you_mean(text, known)} (known: {', '.join(known)})")
    return validate(PaperSpec, read_yaml(known[text]))
