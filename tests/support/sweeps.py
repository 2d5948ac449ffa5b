"""A sweep of the tiny experiment, and its points."""

from archsim.runs.point_measures import PartMeasures
from archsim.specs.library import load_planned
from archsim.specs.plan import Dropped
from support.tiny import TINY


def file_of(folder, sweep, experiment=TINY, name="tiny.yaml"):
    file = folder / name
    file.write_text(f"{experiment}sweep:\n{sweep}", encoding="utf-8")
    return file


def points_of(plan):
    dropped = Dropped()
    return list(plan.points(PartMeasures().functions(), dropped)), dropped


def one_of_everything(folder, sweep):
    """The plan over one system, model, batch and policy."""
    experiment = TINY.replace("batch: [12, 40]", "batch: 12").replace("[base, ep, allo, pred, allo+pred]", "[base]")
    head, _, rest = experiment.partition("- name: square")
    return load_planned(file_of(folder, sweep, head + rest[rest.index("models:") :]))
