"""Loading and saving: what comes back, what plain transformers sees, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PhiConfig,
    PhiForCausalLM,
)
from transformers.utils import logging

from distillspec.errors import UserError
from distillspec.models import load, load_tokenizer, loading, places, saving, wrap
from distillspec.models.protocol import Batch
from distillspec.models.surgery import keep_layers, trim
from support import (
    FAMILIES,
    SIZE,
    SPREAD,
    byte_tokenizer,
    module,
    seeded,
    tiny,
    word_tokenizer,
)

BATCH = Batch((torch.tensor([7, 8, 1]), torch.tensor([9])), (torch.tensor([20, 21, 1]),) * 2)
KEPT = torch.arange(10, 30)


def logits(model):
    return model.head(model.hidden(BATCH)).detach()


def is_tied(model):
    outer = model.module
    return outer.get_output_embeddings().weight is outer.get_input_embeddings().weight


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_comes_back_bitwise_and_as_tied_as_it_was(family, tmp_path):
    model = tiny(family)
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))
    assert is_tied(again) == is_tied(model) == (family != "t5-untied")
    assert again.eos_ids == model.eos_ids
    assert again.vocabulary == model.vocabulary
    assert not again.module.training
    again.save(tmp_path / "twice")
    assert torch.equal(logits(load(tmp_path / "twice")), logits(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_trimmed_draft_comes_back_trimmed_and_bitwise(family, tmp_path):
    target = tiny(family, layers=3)
    draft = trained(keep_layers(target, [0, 2], kept=KEPT))
    draft.save(tmp_path / "draft")
    again = load(tmp_path / "draft")
    assert torch.equal(again.kept, draft.kept)
    assert torch.equal(logits(again), logits(draft))
    assert torch.equal(again.narrow_head(again.hidden(BATCH)), logits(draft)[:, draft.kept])
    again.save(tmp_path / "twice")
    first, second = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("draft", "twice")
    )
    assert first == second


@torch.no_grad()
def plain_and_logits(folder, family):
    """Load as anyone would; its logits at the first row of `BATCH`, like ours."""
    auto = AutoModelForSeq2SeqLM if "t5" in family else AutoModelForCausalLM
    plain = auto.from_pretrained(folder)
    prompt, completion = BATCH.prompts[0][None], BATCH.completions[0]
    if "t5" in family:
        start = torch.tensor([[0, *completion[:-1].tolist()]])
        return plain, plain(input_ids=prompt, decoder_input_ids=start).logits[0]
    return plain, plain(input_ids=torch.cat([prompt, completion[None, :-1]], 1)).logits[0, 2:]


def trained(draft):
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.01)
    return draft


def dropped_by(draft):
    return [i for i in range(SIZE) if i not in draft.kept]


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_transformers_loads_a_trimmed_draft_untrimmed(family, tmp_path):
    """A round trip alone would not notice a layout that only we can read. The bug: rows that
    trimming left out stayed what they were, and an engine that opened the folder drafted them."""
    draft = trained(keep_layers(tiny(family), [0], kept=KEPT))
    inputs = draft.module.get_input_embeddings().weight.detach().clone()
    draft.save(tmp_path)
    plain, theirs = plain_and_logits(tmp_path, family)
    dropped = dropped_by(draft)
    assert (theirs[:, dropped] == 0).all()
    assert torch.equal(plain.get_input_embeddings().weight, inputs)  # one with the head, before
    assert inputs[dropped].any(1).all()
    rows = plain.get_output_embeddings().weight
    assert torch.equal(rows[draft.kept], draft.module.get_output_embeddings().weight)
    assert torch.allclose(theirs[:, draft.kept], logits(draft)[:3, draft.kept], atol=1e-4)


def test_generation_settings_are_saved_as_they_stand(tmp_path):
    """transformers refuses to write a temperature without `do_sample`, which published models
    have: 5.0 always, 5.24 where something was changed, at the first checkpoint of a run."""
    model = tiny("llama")
    own = model.module.generation_config
    own.temperature, own.top_p, own.pad_token_id = 0.9, 0.6, -1
    model.save(tmp_path)
    assert model.module.generation_config is own
    again = load(tmp_path).module.generation_config
    assert (again.temperature, again.top_p, again.pad_token_id) == (0.9, 0.6, -1)
    assert again.eos_token_id == own.eos_token_id


def test_a_head_with_a_bias_never_drafts_what_trimming_left_out(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    ids = {"eos_token_id": 1, "pad_token_id": 0}
    config = PhiConfig(
        vocab_size=SIZE, num_hidden_layers=1, initializer_range=SPREAD, **ids, **sizes
    )
    whole = wrap(seeded(lambda: PhiForCausalLM(config), 0), word_tokenizer())
    draft = trained(keep_layers(whole, [0], kept=KEPT))
    draft.save(tmp_path)
    _, theirs = plain_and_logits(tmp_path, "phi")
    assert (theirs[:, dropped_by(draft)] == -1e4).all()
    assert torch.equal(logits(load(tmp_path)), logits(draft))


def test_loading_changes_the_type_on_request_and_nothing_global(tmp_path, capfd):
    tiny("llama").save(tmp_path)
    before = torch.random.get_rng_state()
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    capfd.readouterr()
    assert load(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert capfd.readouterr() == ("", "")
    assert load(tmp_path).dtype == torch.float32
    assert torch.equal(before, torch.random.get_rng_state())
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (verbosity, bars)


def test_the_tokenizer_comes_alone(tmp_path):
    tiny("t5").save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert load_tokenizer(tmp_path).prompt("w7").tolist() == [7, 1]


def test_what_is_not_a_model_is_told_in_one_line(tmp_path):
    (tmp_path / "note.txt").write_text("no model")
    (tmp_path / "empty").mkdir()
    cases = {
        str(tmp_path / "nowhere"): "does not exist",
        "./nowhere": "does not exist",
        "nowhere.gguf": "does not exist",  # the hub was asked for it
        str(tmp_path / "empty"): "is not a model: expected a folder with config.json",
        str(tmp_path / "note.txt"): "not a GGUF file",
    }
    for path, said in cases.items():
        with pytest.raises(UserError, match=said) as caught:
            load(path)
        assert path in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_run_directory_in_place_of_its_draft_is_told_where_the_draft_is(tmp_path):
    """`--draft runs/kd` for `runs/kd/draft` was told what a model's folder holds, no more."""
    tiny("llama").save(tmp_path / "draft")
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    assert str(caught.value).endswith(f"did you mean {tmp_path / 'draft'}?")


def test_damaged_folders_are_told_in_one_line(tmp_path):
    def fresh(name):
        tiny("llama").save(tmp_path / name)
        return tmp_path / name

    folder = fresh("config")
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot read the config of"):
        load(folder)
    folder = fresh("weights")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot read the model of") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    folder = fresh("layers")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="lacks weights"):
        load(folder)
    folder = fresh("kept")
    for content in ("{}", '{"kept_ids": [3, 2]}', '{"kept_ids": []}', '{"kept_ids": ["a"]}', "["):
        (folder / "kept_ids.json").write_text(content)
        with pytest.raises(UserError, match="kept_ids"):
            load(folder)
    (folder / "kept_ids.json").write_text('{"kept_ids": [1, 48]}')
    with pytest.raises(UserError, match="kept_ids.json"):
        load(folder)


def test_a_whole_draft_saved_over_a_trimmed_one_stays_whole(tmp_path):
    """It came back trimmed to the ids of the one before."""
    trim(tiny("llama"), KEPT).save(tmp_path)
    assert load(tmp_path).kept is not None
    tiny("llama").save(tmp_path)
    assert load(tmp_path).kept is None


def test_t5_in_float16_is_refused_before_its_weights_are_read(tmp_path):
    tiny("t5").save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="overflows in float16"):
        load(tmp_path, dtype=torch.float16)


def test_a_trimmed_draft_on_the_hub_is_loaded_trimmed(tmp_path, monkeypatch):
    """The kept ids are asked of the hub, not only looked for in a folder."""
    (tmp_path / "kept_ids.json").write_text('{"kept_ids": [1, 5]}')
    asked = []

    def fetch(source, file):
        asked.append((source, file))
        if source == "org/whole":
            raise EntryNotFoundError("404")
        return str(tmp_path / file)

    monkeypatch.setattr(saving, "hf_hub_download", fetch)
    assert saving.find_kept("org/whole") is None
    file = saving.find_kept("org/trimmed")
    assert saving.read_kept(file, 6).tolist() == [1, 5]
    assert asked == [("org/whole", "kept_ids.json"), ("org/trimmed", "kept_ids.json")]


def test_a_gguf_file_gives_the_same_logits_and_can_be_saved(tmp_path, capfd):
    made = module("llama", rows=259)
    hf = byte_tokenizer(merges=(("a", "b"), ("c", "d")))
    file = tmp_path / "tiny.gguf"
    write_gguf(made, hf, file)
    capfd.readouterr()
    model = load(file)
    assert capfd.readouterr() == ("", "")
    whole = wrap(made, hf)
    assert torch.allclose(logits(model), logits(whole), atol=1e-4)
    assert model.vocabulary.pieces == whole.vocabulary.pieces
    assert model.tokenizer.prompt("abécd").tolist() == whole.tokenizer.prompt("abécd").tolist()
    assert load(file, dtype=torch.bfloat16).dtype == torch.bfloat16
    model.save(tmp_path / "saved")
    assert "quantization_config" not in (tmp_path / "saved" / "config.json").read_text()
    assert torch.equal(logits(load(tmp_path / "saved")), logits(model))


def test_a_gguf_file_whose_tokens_are_read_wrongly_is_refused(tmp_path, monkeypatch):
    """The bug: transformers 5.0 adds ids that the file does not have, and what it made of text was
    taken for the model's."""
    hf = byte_tokenizer(merges=(("a", "b"), ("c", "d")))
    write_gguf(module("llama", rows=259), hf, tmp_path / "tiny.gguf")
    hf.add_tokens(["<unk>", "<s>", "</s>"])
    monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", lambda *_, **__: hf)
    with pytest.raises(UserError, match=r"has 259 tokens, and transformers \S+ reads 262"):
        load(tmp_path / "tiny.gguf")


def test_a_gguf_file_without_the_package_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(places, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(
        UserError, match=r"needs the package gguf: pip install 'distillspec\[gguf\]'"
    ):
        load(tmp_path / "x.gguf")


def test_a_gguf_file_without_anything_in_it_is_one_line(tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match="cannot read the config of"):
        load(tmp_path / "x.gguf")


def write_gguf(made, hf, file):
    """Write a tiny Llama the way llama.cpp's converter does (rotary halves interleaved)."""
    gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    config = made.config
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    pieces = sorted(hf.get_vocab().items(), key=lambda pair: pair[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([piece for piece, _ in pieces])
    writer.add_token_types([3 if piece == "<|endoftext|>" else 1 for piece, _ in pieces])
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(hf.eos_token_id)
    writer.add_eos_token_id(hf.eos_token_id)
    writer.add_add_bos_token(False)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "model.layers.": "blk.",
    }
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, tensor in made.state_dict().items():
        if key.startswith("lm_head"):
            continue
        for part, count in heads.items():
            if part in key:
                size = tensor.shape[0] // count // 2
                tensor = tensor.view(count, 2, size, -1).swapaxes(1, 2).reshape(tensor.shape)
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        writer.add_tensor(key, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
