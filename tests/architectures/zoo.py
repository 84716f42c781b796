"""Many architectures of `transformers` in tiny configurations: that they run, and roughly how well.

Their random weights are of variance 1/fan-in, as in `hub`. `python -m tests.architectures zoo` writes their table.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from momentprop import Estimate, propagate
from momentprop.values.structures import leaves_of
from tests.architectures.state import embeddings, images, with_variance_of_trained_weights

Inputs = Callable[[], dict[str, Tensor]]

_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_TEXT = {"vocab_size": 100, "max_position_embeddings": 64, **_SIZE, **_ENDS}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_GPT = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **_ENDS}
_EXPERTS = {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_STATES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_BOTH = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    **_ENDS,
    "decoder_start_token_id": 1,
}
_T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_VISION = {**_SIZE, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
_AUDIO = {
    **_SIZE,
    "vocab_size": 20,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}
_SERIES = {
    "prediction_length": 6,
    "context_length": 24,
    "lags_sequence": [1, 2, 3],
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
_PATCHES = {"num_input_channels": 2, "context_length": 24, "patch_length": 6, "patch_stride": 6}
_RESNET = {"model_type": "resnet", "embedding_size": 8, "out_features": ["stage4"], **_STAGES}


def _noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _text(length: int = 12, dim: int = 32) -> Inputs:
    return lambda: {"inputs_embeds": embeddings(2, length, dim)}


def _pixels(size: int = 32) -> Inputs:
    return lambda: {"pixel_values": images(2, size)}


def _frames() -> dict[str, Tensor]:
    return {"pixel_values": images(4, 32).reshape(2, 2, 3, 32, 32)}


def _translation() -> dict[str, Tensor]:
    return {**_text()(), **_words()}


def _words() -> dict[str, Tensor]:
    return {"decoder_input_ids": torch.arange(3, 9).expand(2, 6)}


def _wave() -> dict[str, Tensor]:
    return {"input_values": _noise(2, 800)}


def _past() -> dict[str, Tensor]:
    return {"past_values": 0.3 * _noise(2, 24, 2).cumsum(1)}


def _forecast() -> dict[str, Tensor]:
    past = 24 + 3
    return {
        "past_values": 1 + 0.5 * _noise(2, past),
        "past_time_features": _noise(2, past, 2, seed=2),
        "past_observed_mask": torch.ones(2, past),
        "future_values": _noise(2, 6, seed=3),
        "future_time_features": _noise(2, 6, 2, seed=4),
    }


class Tiny(NamedTuple):
    """An architecture: its name here and in `transformers`, its settings, and an input whose first tensor is random."""

    name: str
    model_type: str
    settings: dict[str, Any]
    inputs: Inputs = _text()

    def __str__(self) -> str:
        return self.name

    def build(self) -> nn.Module:
        from transformers import AutoConfig, AutoModel

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModel.from_config(AutoConfig.for_model(self.model_type, **self.settings))
        return with_variance_of_trained_weights(model).eval()


ZOO = [
    # state spaces, recurrence, and attention in windows: they write values into buffers
    Tiny("Mamba", "mamba", _STATES),
    Tiny("Mamba-2", "mamba2", {**_STATES, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}),
    Tiny("FalconMamba", "falcon_mamba", {**_STATES, "state_size": 16, "time_step_rank": 16}),
    Tiny("RWKV", "rwkv", {**_STATES, "attention_hidden_size": 32, "intermediate_size": 64}),
    Tiny("RecurrentGemma", "recurrent_gemma", {**_GROUPED, "lru_width": 32, "attention_window_size": 8}),
    Tiny("LFM2", "lfm2", {**_GROUPED, "full_attn_idxs": [1]}),
    Tiny("Longformer", "longformer", {**_TEXT, "attention_window": [4, 4]}),
    Tiny("BigBird", "big_bird", {**_TEXT, "attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
         _text(48)),
    Tiny("LED", "led", {**_BOTH, "attention_window": [4, 4], "max_encoder_position_embeddings": 64,
                        "max_decoder_position_embeddings": 64}, _translation),
    # mixtures of experts
    Tiny("Mixtral", "mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    Tiny("Qwen3-MoE", "qwen3_moe", _EXPERTS),
    Tiny("OLMoE", "olmoe", _EXPERTS),
    Tiny("gpt-oss", "gpt_oss", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    # decoders
    Tiny("Llama", "llama", _GROUPED),
    Tiny("Gemma 3", "gemma3_text", {**_GROUPED, "sliding_window": 8}),
    Tiny("Qwen3", "qwen3", _GROUPED),
    Tiny("OLMo 2", "olmo2", _GROUPED),
    Tiny("Phi-3", "phi3", _GROUPED),
    Tiny("Cohere", "cohere", _GROUPED),
    Tiny("Falcon", "falcon", {**_TEXT, "alibi": False}),
    Tiny("BLOOM", "bloom", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    Tiny("GPT-NeoX", "gpt_neox", _TEXT),
    Tiny("GPT-J", "gptj", {**_GPT, "rotary_dim": 4}),
    Tiny("StarCoder2", "starcoder2", _GROUPED),
    Tiny("MPT", "mpt", {"vocab_size": 100, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    Tiny("OPT", "opt", {**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    # encoders
    Tiny("ModernBERT", "modernbert", {**_TEXT, "global_attn_every_n_layers": 2, "local_attention": 8,
                                      "cls_token_id": 1, "sep_token_id": 2}),
    Tiny("RoBERTa", "roberta", _TEXT),
    Tiny("ALBERT", "albert", {**_TEXT, "embedding_size": 16}, _text(dim=16)),
    Tiny("ELECTRA", "electra", {**_TEXT, "embedding_size": 32}),
    Tiny("MPNet", "mpnet", _TEXT),
    Tiny("ConvBERT", "convbert", {**_TEXT, "embedding_size": 32, "head_ratio": 2, "num_groups": 1}),
    Tiny("RoFormer", "roformer", {**_TEXT, "embedding_size": 32}),
    Tiny("CANINE", "canine", _TEXT),
    Tiny("ESM", "esm", {**_TEXT, "mask_token_id": 4}),
    Tiny("XLNet", "xlnet", {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
    Tiny("Perceiver", "perceiver", {"num_latents": 6, "d_latents": 32, "d_model": 32, "num_blocks": 1,
                                    "num_self_attends_per_block": 2, "num_self_attention_heads": 4,
                                    "num_cross_attention_heads": 4}, lambda: {"inputs": embeddings(2, 12, 32)}),
    # encoders with decoders
    Tiny("T5", "t5", {**_T5, "decoder_start_token_id": 0}, _translation),
    Tiny("BART", "bart", _BOTH, _translation),
    Tiny("Pegasus", "pegasus", _BOTH, _translation),
    # images
    Tiny("DeiT", "deit", _VISION, _pixels()),
    Tiny("BEiT", "beit", {**_VISION, "use_relative_position_bias": True}, _pixels()),
    Tiny("Data2Vec, vision", "data2vec-vision", _VISION, _pixels()),
    Tiny("SigLIP, vision", "siglip_vision_model", _VISION, _pixels()),
    Tiny("DINOv3", "dinov3_vit", _VISION, _pixels()),
    Tiny("Swin V2", "swinv2", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 1],
                               "num_heads": [2, 4], "window_size": 4}, _pixels()),
    Tiny("ConvNeXt V2", "convnextv2", _STAGES, _pixels()),
    Tiny("PVT v2", "pvt_v2", {**_STAGES, "image_size": 64, "num_attention_heads": [1, 2, 2, 4],
                              "mlp_ratios": [2, 2, 2, 2]}, _pixels(64)),
    Tiny("PoolFormer", "poolformer", _STAGES, _pixels(64)),
    Tiny("Hiera", "hiera", {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8]},
         _pixels(64)),
    Tiny("DPT", "dpt", {**_VISION, "backbone_out_indices": [0, 1], "neck_hidden_sizes": [8, 8, 8, 8],
                        "fusion_hidden_size": 8}, _pixels()),
    Tiny("SAM, vision", "sam_vision_model", {**_SIZE, "output_channels": 16, "image_size": 32, "patch_size": 8,
                                             "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 64}, _pixels()),
    Tiny("DETR", "detr", {**_BOTH, "backbone_config": _RESNET, "backbone": None, "use_timm_backbone": False,
                          "use_pretrained_backbone": False, "num_queries": 4}, _pixels(64)),
    Tiny("ViViT", "vivit", {**_VISION, "num_frames": 2, "tubelet_size": [2, 8, 8]}, _frames),
    Tiny("VideoMAE", "videomae", {**_VISION, "num_frames": 2, "tubelet_size": 2}, _frames),
    Tiny("TimeSformer", "timesformer", {**_VISION, "num_frames": 2}, _frames),
    # sound
    Tiny("Whisper", "whisper", {**_BOTH, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32},
         lambda: {"input_features": _noise(2, 8, 32), **_words()}),
    Tiny("Wav2Vec2", "wav2vec2", _AUDIO, _wave),
    Tiny("HuBERT", "hubert", _AUDIO, _wave),
    Tiny("WavLM", "wavlm", _AUDIO, _wave),
    Tiny("Wav2Vec2-Conformer", "wav2vec2-conformer", {**_AUDIO, "position_embeddings_type": "relative"}, _wave),
    Tiny("AST", "audio-spectrogram-transformer", {**_SIZE, "patch_size": 4, "max_length": 16, "num_mel_bins": 8,
                                                  "frequency_stride": 4, "time_stride": 4},
         lambda: {"input_values": _noise(2, 16, 8)}),
    # series
    Tiny("PatchTST", "patchtst", {**_PATCHES, "num_hidden_layers": 2, "d_model": 32, "num_attention_heads": 4,
                                  "ffn_dim": 64}, _past),
    Tiny("PatchTSMixer", "patchtsmixer", {**_PATCHES, "num_layers": 2, "d_model": 16}, _past),
    Tiny("Informer", "informer", _SERIES, _forecast),
    Tiny("Time Series Transformer", "time_series_transformer", _SERIES, _forecast),
]  # fmt: skip
"""Those that run."""

REFUSED = {
    "scripted code": [
        Tiny("DeBERTa", "deberta", {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
        Tiny("DeBERTa-v2", "deberta-v2", {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    ],
    "no Normal rule for 'fft_": [Tiny("Autoformer", "autoformer", _SERIES, _forecast), Tiny("FNet", "fnet", _TEXT)],
    "no Normal rule for 'acos'": [Tiny("YOSO", "yoso", {**_TEXT, "use_expectation": True})],
    "the outcome of '__lt__' on a random Normal": [
        Tiny("TimesFM", "timesfm", {"patch_length": 8, "context_length": 32, "horizon_length": 8, "hidden_size": 32,
                                    "intermediate_size": 64, "head_dim": 8, "num_attention_heads": 4,
                                    "num_hidden_layers": 2},
             lambda: {"past_values": _noise(2, 32), "past_values_padding": torch.zeros(2, 32),
                      "freq": torch.zeros(2, 1, dtype=torch.long)}),
    ],
}  # fmt: skip
"""Those that do not, by what the error says; `method="sample"` runs them."""


class Found(NamedTuple):
    """The errors of AP1, and of AP2 at variance 1e-10, relative to the largest output, and the accuracy of AP2."""

    parameters: int
    ap1: float
    tiny: float
    mean: float  # mean |mean - mean*|, in units of the mean deviation*
    std: float  # geometric mean of deviation / deviation*, where both are random


def first(output: Any) -> Any:
    """The first output that is made of floating-point numbers."""
    return next(leaf for leaf in leaves_of(output) if leaf.is_floating_point())


@torch.no_grad()
def measured(tiny: Tiny, std: float = 0.1, draws: int = 300) -> Found:
    """Run an architecture by all methods; its own draws, if it makes any, are the same each time."""
    model, inputs = tiny.build(), tiny.inputs()

    def run(**options: Any) -> Any:
        torch.manual_seed(0)
        return first(propagate(model, **inputs, **options, covariance=False))

    torch.manual_seed(0)
    plain = first(model(**{name: tensor.clone() for name, tensor in inputs.items()}))
    ap1, limit, ap2 = run(method="ap1"), run(input_variance=1e-10), run(input_variance=std**2)
    drawn = run(input_variance=std**2, method="sample", samples=draws)
    assert type(drawn) is Estimate
    assert ap2.loc.isfinite().all()
    assert ap2.variance.isfinite().all()
    assert (ap2.variance >= 0).all()
    scale = plain.abs().max()
    both = (ap2.variance > 0) & (drawn.variance > 0)
    return Found(
        sum(parameter.numel() for parameter in model.parameters()),
        float((ap1.loc - plain).abs().max() / scale),
        float((limit.loc - plain).abs().max() / scale),
        float((ap2.loc - drawn.loc).abs().mean() / drawn.variance.sqrt().mean()),
        float((ap2.variance[both] / drawn.variance[both]).log().mean().div(2).exp()),
    )
