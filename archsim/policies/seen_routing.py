"""What rules may know of the tokens that ran: pairs of experts, transitions, origins, subjects, scores, phases.

A rule that ``needs: routing`` gets it; the demand of a run keeps single tokens for such rules alone, and of a table
only what is asked for is counted, when it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class SeenRouting:
    """Tokens of some iterations, as the router chose, whatever of it was executed."""

    experts: np.ndarray  # int16[token, layer, k]: of the layers that run
    die: np.ndarray  # int32[token]: where each lives
    request: np.ndarray  # int32[token]: its request's place in the batch
    step: np.ndarray  # int32[token]: its iteration
    prompt: np.ndarray  # bool[token]: whether it is of a prompt: the phase
    dies: int  # of the machine
    num_experts: int  # of the model
    subject_of: np.ndarray  # int16[request of the batch]: index into ``subjects``
    subjects: tuple[str, ...]  # names
    # float32[token, layer, k]: the gate's for all that were chosen; None where the traffic has none
    scores: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.experts)

    def rows(self, which: np.ndarray | slice) -> SeenRouting:
        """Of the tokens where bool[token] ``which``, or of a slice of them."""
        columns: dict[str, Any] = {
            name: getattr(self, name)[which] for name in ("experts", "die", "request", "step", "prompt")
        }
        return replace(self, **columns, scores=None if self.scores is None else self.scores[which])

    def layer(self, layer: int) -> SeenRouting:
        """Of one layer alone, and the one before it, if there is one: what a step may know."""
        of = slice(max(layer - 1, 0), layer + 1)
        return replace(self, experts=self.experts[:, of], scores=None if self.scores is None else self.scores[:, of])

    @property
    def phases(self) -> Iterator[tuple[str, SeenRouting]]:
        """("prefill" or "decode", its tokens), those that there are."""
        for name, which in (("prefill", self.prompt), ("decode", ~self.prompt)):
            if which.any():
                yield name, self.rows(which)

    @cached_property
    def pairs(self) -> np.ndarray:
        """int64[layer, i, j]: tokens that chose both i and j ≠ i; symmetric, 0 on the diagonal."""
        top_k = self.experts.shape[2]
        every = [(one, other) for one in range(top_k) for other in range(top_k) if one != other]
        return self._tables(((self.experts[:, :, one], self.experts[:, :, other]) for one, other in every))

    @cached_property
    def transitions(self) -> np.ndarray:
        """int64[layer - 1, i, j]: tokens that chose i at a layer and j at the next."""
        top_k = self.experts.shape[2]
        every = [(one, other) for one in range(top_k) for other in range(top_k)]
        return self._tables(((self.experts[:, :-1, one], self.experts[:, 1:, other]) for one, other in every), -1)

    @cached_property
    def origins(self) -> np.ndarray:
        """int64[layer, die, expert]: tokens by the die on which they live."""
        return self._by(self.die, self.dies)

    @cached_property
    def subject_loads(self) -> np.ndarray:
        """int64[subject, layer, expert]: tokens by the subject of their request."""
        return self._by(self.subject_of[self.request], len(self.subjects)).transpose(1, 0, 2)

    def _by(self, group: np.ndarray, groups: int) -> np.ndarray:
        layers, found = self.experts.shape[1], []
        for layer in range(layers):
            key = (group[:, None] * self.num_experts + self.experts[:, layer]).ravel()
            found.append(np.bincount(key, minlength=groups * self.num_experts))
        shape = layers, groups, self.num_experts
        return np.array(found).reshape(shape) if found else np.zeros(shape, np.int64)

    def _tables(self, columns: Iterator[tuple[np.ndarray, np.ndarray]], more: int = 0) -> np.ndarray:
        size = self.num_experts
        found = np.zeros((max(self.experts.shape[1] + more, 0), size * size), np.int64)
        for one, other in columns:
            key = one.astype(np.int64) * size + other
            for layer, table in enumerate(found):
                table += np.bincount(key[:, layer], minlength=size * size)
        return found.reshape(-1, size, size)


def join_seen(parts: Sequence[SeenRouting]) -> SeenRouting | None:
    """The tokens of several iterations of one batch; None of none."""
    if not parts:
        return None
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in parts])
        for name in ("experts", "die", "request", "step", "prompt")
    }
    scores = [each.scores for each in parts if each.scores is not None]
    return replace(parts[0], **columns, scores=np.concatenate(scores) if len(scores) == len(parts) else None)
