"""Small configurations of models of `transformers`, with random weights; their code is used as it is."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.architectures.state import images, with_statistics_of, with_variance_of_trained_weights

_TEXT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
LENGTH = 12
CLASSES = 50


def _made(name: str, config: Any) -> nn.Module:
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, name)(config)
    return with_variance_of_trained_weights(model).eval()


def bert() -> nn.Module:
    """BERT."""
    from transformers import BertConfig

    return _made("BertModel", BertConfig(vocab_size=100, max_position_embeddings=32, **_TEXT))


def distilbert() -> nn.Module:
    """DistilBERT."""
    from transformers import DistilBertConfig

    config = DistilBertConfig(vocab_size=100, max_position_embeddings=32, dim=64, n_layers=3, n_heads=4, hidden_dim=256)
    return _made("DistilBertModel", config)


def t5_encoder() -> nn.Module:
    """The encoder of T5, whose attention does not divide by the root of the dimension but has smaller query weights."""
    from transformers import T5Config

    config = T5Config(vocab_size=100, d_model=64, d_kv=16, d_ff=256, num_layers=3, num_heads=4)
    model = _made("T5EncoderModel", config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".q.weight"):
                parameter.mul_(config.d_kv**-0.5)
    return model


def gpt2() -> nn.Module:
    """GPT-2."""
    from transformers import GPT2Config

    ends = {"bos_token_id": 98, "eos_token_id": 99}
    return _made("GPT2Model", GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=3, n_head=4, **ends))


def vit() -> nn.Module:
    """ViT with a classifier."""
    from transformers import ViTConfig

    return _made("ViTForImageClassification", ViTConfig(image_size=32, patch_size=8, num_labels=CLASSES, **_TEXT))


def dinov2() -> nn.Module:
    """DINOv2 with a classifier, at another resolution than its positions were made for."""
    from transformers import Dinov2Config

    config = Dinov2Config(
        image_size=24, patch_size=8, num_labels=CLASSES, hidden_size=64, num_hidden_layers=3, num_attention_heads=4
    )
    return _made("Dinov2ForImageClassification", config)


def clip() -> nn.Module:
    """CLIP: similarities of images and texts."""
    from transformers import CLIPConfig

    ends = {"bos_token_id": 98, "eos_token_id": 99}
    text = dict(vocab_size=100, max_position_embeddings=LENGTH, projection_dim=32, **ends, **_TEXT)
    vision = dict(image_size=32, patch_size=8, projection_dim=32, **_TEXT)
    return _made("CLIPModel", CLIPConfig(text_config=text, vision_config=vision, projection_dim=32))


def swin() -> nn.Module:
    """Swin with shifted windows and a classifier."""
    from transformers import SwinConfig

    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=CLASSES
    )
    return _made("SwinForImageClassification", config)


def convnext() -> nn.Module:
    """ConvNeXt with a classifier, and layer scales of one half."""
    from transformers import ConvNextConfig

    config = ConvNextConfig(
        hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1], layer_scale_init_value=0.5, num_labels=CLASSES
    )
    return _made("ConvNextForImageClassification", config)


def segformer() -> nn.Module:
    """SegFormer for segmentation."""
    from transformers import SegformerConfig

    config = SegformerConfig(
        depths=[1, 1, 2, 1],
        hidden_sizes=[16, 32, 64, 128],
        num_attention_heads=[1, 2, 4, 8],
        decoder_hidden_size=64,
        num_labels=4,
    )
    return with_statistics_of(_made("SegformerForSemanticSegmentation", config), images(32, 64))


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 with a classifier."""
    from transformers import MobileNetV2Config

    config = MobileNetV2Config(image_size=64, depth_multiplier=0.5, num_labels=CLASSES)
    return with_statistics_of(_made("MobileNetV2ForImageClassification", config), images(64, 64))


def padding(embeddings: Any) -> dict[str, Tensor]:
    """The further arguments of sentences in two segments, of which the last quarter is padding."""
    mask = torch.ones(embeddings.shape[:2], dtype=torch.long)
    mask[:, LENGTH * 3 // 4 :] = 0
    segments = (torch.arange(LENGTH) >= LENGTH // 2).long().expand(embeddings.shape[:2])
    return {"attention_mask": mask, "token_type_ids": segments}


def texts(_: Any) -> dict[str, Tensor]:
    """The texts that CLIP compares its images with."""
    return {"input_ids": token_ids(20)}


def token_ids(count: int) -> Tensor:
    """Sentences of random tokens that end with the last token of the vocabulary."""
    ids = torch.randint(1, 98, (count, LENGTH), generator=torch.Generator().manual_seed(2))
    ids[:, -1] = 99
    return ids
