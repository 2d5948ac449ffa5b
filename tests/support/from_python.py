"""Functions of kernels, called from Python."""

from archsim.base.compiled import kernel


def from_python(function):
    """A kernel that calls a function which has no entry point for Python (``inner`` or ``outer``)."""

    def call(*arguments):
        return function(*arguments)

    return kernel(call)
