"""Replication for the next layer: further holders of a layer for one step, fetched while the step before runs."""

import numpy as np
import pytest

from archsim.policies.replication import LayerView, libra, lina, table_of_paths


def test_lina_with_a_stated_accuracy_asks_no_paths():
    """All pairs predicted: the hottest expert gets the first replica; half of them: the total stays."""
    origins = np.array([[90, 1, 1, 1], [60, 2, 2, 2]], np.int32)
    holders = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], bool)
    view = LayerView(origins, np.zeros(4, np.float32), np.array([0, 0, 1, 1]), holders, 0, 0)
    holds = lina(view, slots=1, accuracy=1.0).holds
    assert holds[0].tolist() == [False, True] and not holds[:, 0][:2].any()
    assert not lina(view, slots=1).holds.any()
    assert lina(view, slots=1, accuracy=1.0, in_sight_ns=2.0).in_sight_ns == 2.0


def test_a_table_that_is_rarely_right_replicates_what_is_popular_elsewhere():
    """Of 64 experts the first eight are hot: a table that is always right copies them, one that hardly is copies eight
    others, the same in every step.
    """
    load = np.where(np.arange(64) < 8, 900, 20).astype(np.int32)
    home = np.arange(64) // 8
    holders = home[:, None] == np.arange(8)

    def copied(accuracy, step):
        view = LayerView(load[None].repeat(8, axis=0), np.zeros(64, np.float32), home, holders, 0, step)
        return lina(view, slots=1, accuracy=accuracy).holds.any(axis=1)

    assert copied(1.0, 0)[:8].sum() == 7 and copied(0.05, 0)[:8].sum() <= 3  # the eighth finds no room
    assert (copied(0.05, 0) == copied(0.05, 7)).all()
    predicted = table_of_paths(load, 0.3, np.random.default_rng(0))
    assert predicted.sum() == pytest.approx(load.sum()) and (predicted >= 0.3 * load).all()


def test_the_host_of_libra_is_hidden_behind_local_experts():
    """The die with the fewest pairs for its own experts hides the least; nothing below zero is left."""
    origins = np.array([[9, 1, 1, 1], [6, 2, 2, 2]], np.int32)
    holders = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], bool)
    view = LayerView(origins, np.zeros(4, np.float32), np.array([0, 0, 1, 1]), holders, 0, 0)
    found = libra(view, slots=1, host_ns=100.0, local_pair_ns=2.0)
    fewest = (origins * (found.holds | holders).T).sum(axis=1).min()
    assert found.in_sight_ns == 100 - 2 * fewest > 0
    assert libra(view, slots=1, host_ns=100.0, local_pair_ns=100.0).in_sight_ns == 0
    assert libra(view, slots=1).in_sight_ns == 0
