"""A watcher that remembers what it hears, and may interrupt what it watches."""

from archsim.runs.sweep import Unwatched


class Heard(Unwatched):
    """``found``: how many runs were kept, ``ran``: keys of those that have ended, ``failures``: of those that failed,
    ``shares``: of what has been done. ``stop``: it is interrupted when so many have ended, by what ``by`` names.
    """

    def __init__(self, stop: int = 0, by: str = "ran"):
        self.stop, self.by, self.found, self.ran, self.failures, self.shares = stop, by, 0, [], [], []

    @property
    def ended(self) -> int:
        return len(getattr(self, self.by))

    def kept(self, runs):
        self.found += runs

    def on_finished(self, run, record):
        self.ran.append(run.key)
        self.interrupt("ran")

    def on_failed(self, run, failure):
        self.failures.append(failure)

    def at(self, text, share):
        self.shares.append(share)
        self.interrupt("shares")

    def interrupt(self, by):
        if by == self.by and self.ended == self.stop:
            raise KeyboardInterrupt
