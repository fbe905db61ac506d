"""Partitions fitted by Dask tasks, and merged as a tree of tasks, are one pass over all of the data."""

import dask
import numpy as np
import pytest

from trimtab.norms.standardizer import Standardizer


def partitions(n=9, rows=400):
    rng = np.random.default_rng(4)
    return [1e5 * k + rng.standard_normal((rows + k, 4)) * [1, 2, 3, 4] for k in range(n)]


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_partitions_as_a_tree_of_dask_tasks(scheduler):
    parts = partitions()
    level = [dask.delayed(Standardizer().fit)(dask.delayed(part)) for part in parts]
    while len(level) > 1:
        level = [level[k].merge(*level[k + 1 : k + 2]) for k in range(0, len(level), 2)]
    with dask.config.set(scheduler=scheduler):
        merged = level[0].compute()
    whole = Standardizer().fit(np.concatenate(parts))
    np.testing.assert_array_equal(merged.counts_, whole.counts_)
    np.testing.assert_allclose(merged.mean_, whole.mean_, rtol=1e-12)
    np.testing.assert_allclose(merged.var_, whole.var_, rtol=1e-11)
