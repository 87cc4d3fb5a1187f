"""Seeds of rows: the same for the API as for the verbs, and none too large for its generator."""

import pytest
import torch

from distillspec.models.requests import as_generators
from distillspec.models.seeds import row_seed
from distillspec.studies.outputs import seeded


@pytest.mark.parametrize("seed", [0, 7, -3, 10**14, 2**70])
@pytest.mark.parametrize("bits", [31, 63])
def test_a_seed_is_one_that_its_generator_takes(seed, bits):
    """`check-export --seed 100000000000000` died of torch's overflow."""
    found = [row_seed(seed, row, bits=bits) for row in range(5)]
    assert len(set(found)) == 5
    assert all(0 <= one < 2**bits for one in found)
    torch.Generator().manual_seed(found[-1])


def test_a_first_sample_by_the_api_is_the_row_of_a_verb():
    ours, theirs = as_generators(5, 3, 2), seeded(5, 3)
    assert ours is not None
    assert [one.initial_seed() for one in ours[::2]] == [one.initial_seed() for one in theirs]
    assert [one.initial_seed() for one in theirs] == [5_000_015, 5_000_016, 5_000_017]
