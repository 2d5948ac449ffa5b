"""The public functions of ``import archsim as ar``; an experiment is a loaded one, a path, or a mapping.

Examples in docstrings run ``ar.api.EXAMPLE``, an experiment of milliseconds. Those that end in ``SKIP`` are not run by
tests, because they take long or need files of yours.
"""

from archsim.api.files import *  # noqa: F403
from archsim.api.files import EXAMPLE as EXAMPLE
from archsim.api.measured import *  # noqa: F403
from archsim.api.questions import *  # noqa: F403
from archsim.api.runs import *  # noqa: F403
from archsim.api.serving import *  # noqa: F403
