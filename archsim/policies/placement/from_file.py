"""A placement from a file: of ``archsim place``, or in the format of a serving engine."""

from pathlib import Path

import numpy as np

from archsim.base.errors import PlacementError
from archsim.policies.placement.placement import Placement
from archsim.workload.placements import sglang
from archsim.workload.placements.files import read_placement
from archsim.workload.placements.physical import PhysicalMap

OF_PLACE = "placement.json"  # what `archsim place` writes beside the engines' files


def file_of(name: str) -> Path:
    """The file that is read: beside the manifest of ``archsim place``, SGLang's."""
    path = Path(name)
    if path.is_dir():
        path = path / OF_PLACE
    return path.with_name(sglang.FILE) if path.name == OF_PLACE else path


def from_file(model, dies: int, file: str) -> Placement:
    """``file``: a folder or ``placement.json`` of ``archsim place``, or an engine's file, for as many ranks as
    dies. Raises PlacementError for a file that the engine would refuse.
    """
    if not file:
        raise PlacementError("placement: from_file: give `file`, such as {name: from_file, file: out/placement.json}")
    return placement_of(read_placement(file_of(file), model, dies))


def placement_of(found: PhysicalMap) -> Placement:
    """The home of an expert is its first slot; slots that hold an expert a second time on a rank stay allocated."""
    layers, slots = found.experts.shape
    holds = found.copies() > 0
    home = np.zeros(holds.shape[:2], np.int32)
    for slot in reversed(range(slots)):
        home[np.arange(layers), found.experts[:, slot]] = slot // found.slots_per_rank
    return Placement(home, holds, np.full((layers, found.ranks), found.slots_per_rank, np.int64))
