"""Seeds of rows: the same for the API as for the verbs, and none too large for its generator."""

import pytest
import torch

from distillspec.math.sampling import Sampling
from distillspec.models.assisted import generate
from distillspec.models.lora import add_lora
from distillspec.models.requests import as_generators
from distillspec.models.scratch import Sizes, new_model
from distillspec.models.seeds import globally_seeded, row_seed
from distillspec.models.surgery import narrow
from distillspec.studies.outputs import seeded
from support import tiny, word_tokenizer


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


def test_nothing_but_the_cpu_is_seeded_for_what_draws_there(monkeypatch):
    """`torch.manual_seed` seeds every GPU too, whose random state was then another afterwards."""
    touched, models = [], [tiny("llama"), tiny("llama")]  # built with torch.manual_seed
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: touched.append(name))
    before = torch.random.get_rng_state()
    target = models[0]
    narrow(target, width=16, layers=1, heads=2, generator=torch.Generator())
    add_lora(models[1].module, 2, seed=3)
    generate(target, None, torch.arange(6, 9), sampling=Sampling(), max_new_tokens=1, seed=3)
    new_model(Sizes("llama", 16, 1, 2, 32, 64), word_tokenizer(), seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    with globally_seeded(torch.device("cpu"), 3):
        drawn = torch.rand(4)
    assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    assert not touched
