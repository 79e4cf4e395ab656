"""Small models to export, and DeepSeek-V3 and Llama of transformers in float64, where they would take float32."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama import modeling_llama

from small_models import small_model
from twofold.export.target import Target

DEEPSEEK = ("K=V decoupled", "K=V GQA-2 decoupled", "K=V MQA decoupled", "MLA")
"""g = H, 2 and 1, and a latent with up-projections."""
LLAMA = ("QKV", "GQA-2", "MQA", "Q=K", "K=V on_read", "K=V GQA-2 on_read", "Q=K=V on_read")


def exportable(variant: str, **others):
    """In float64, with sizes that no two of which are equal."""
    if variant in DEEPSEEK:
        return small_model(variant, rotary="partial", **{"rotary_dims": 4, **others})
    return small_model(variant, **{"hidden_size": 12, **others})


def loaded(target: Target):
    """The target's model in float64."""
    make = {"deepseek_v3": modeling_deepseek_v3.DeepseekV3ForCausalLM, "llama": modeling_llama.LlamaForCausalLM}
    model = make[target.config.model_type](target.config).double().eval()
    model.load_state_dict(target.tensors)
    if target.config.tie_word_embeddings:
        assert model.lm_head.weight is model.model.embed_tokens.weight
    return model


@contextmanager
def in_float64():
    """Norms and angles of both families in the dtype that they are given."""

    def normed(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)

    def turned(self, x, position_ids):
        dims = len(self.inv_freq) * 2
        turns = self.config.rope_parameters["rope_theta"] ** -(torch.arange(0, dims, 2).double() / dims)
        angles = torch.cat([position_ids[..., None].double() * turns] * 2, dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((modeling_deepseek_v3, "DeepseekV3"), (modeling_llama, "Llama")):
            patch.setattr(getattr(module, f"{name}RMSNorm"), "forward", normed)
            patch.setattr(getattr(module, f"{name}RotaryEmbedding"), "forward", turned)
        yield
