"""transformers' own generation, asked with every setting of ours."""

import pytest
import torch

from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.assisted import generate
from support import tiny


@pytest.mark.parametrize("sampling", [Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(min_p=1.0)])
def test_a_cut_to_the_likeliest_token_is_greedy(sampling):
    """min-p was not handed on: text followed another law than the one it was held against."""
    target, prompt = tiny("llama"), torch.arange(6, 12)
    found = [
        generate(target, None, prompt, sampling=one, max_new_tokens=12, seed=3).ids.tolist()
        for one in (sampling, GREEDY)
    ]
    assert found[0] == found[1]
