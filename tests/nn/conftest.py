"""Small random models of each architecture, made in memory."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCABULARY = 60


def bert(**options):
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        initializer_range=0.15,
        max_position_embeddings=64,
        **options,
    )
    return transformers.BertForSequenceClassification(config)


def distilbert():
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=37,
        max_position_embeddings=64,
        initializer_range=0.15,
    )
    return transformers.DistilBertForSequenceClassification(config)


def roberta():
    config = transformers.RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        initializer_range=0.15,
        max_position_embeddings=70,
        pad_token_id=1,
    )
    return transformers.RobertaForSequenceClassification(config)


def vit():
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        image_size=24,
        patch_size=6,
        initializer_range=0.15,
    )
    return transformers.ViTForImageClassification(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.15
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    """Four query heads share two key heads."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=37,
        max_position_embeddings=64,
        initializer_range=0.15,
    )
    return transformers.LlamaForCausalLM(config)


TEXT_ENCODERS = {"bert": bert, "distilbert": distilbert, "roberta": roberta}
ALL = {**TEXT_ENCODERS, "vit": vit, "gpt2": gpt2}


@pytest.fixture
def make_model():
    def make(name: str):
        torch.manual_seed(0)
        return {**ALL, "llama": llama}[name]().eval()

    return make


def sentences(count: int = 6, longest: int = 20, pad: int = 0, seed: int = 0, padded_to: int | None = None):
    """Token ids and mask of random sentences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, longest + 1, (count, 1), generator=generator)
    lengths[0] = longest
    width = padded_to or longest
    ids = torch.randint(5, VOCABULARY, (count, longest), generator=generator)
    ids = torch.nn.functional.pad(ids, (0, width - longest), value=pad)
    mask = torch.arange(width) < lengths
    return {"input_ids": torch.where(mask, ids, pad), "attention_mask": mask.long()}


def batch_for(name: str, **options):
    if name == "vit":
        generator = torch.Generator().manual_seed(options.get("seed", 0))
        return {"pixel_values": torch.randn(3, 3, 24, 24, generator=generator)}
    return sentences(pad=1 if name == "roberta" else 0, **options)
