"""BERT and GPT-2 of transformers (ST Sec. 5.1) as encoders of texts, with the functions that models of timm have.

The modules are those of transformers, and so are the names of the weights. The pass through them is written out here:
transformers' own looks at the values of a mask, for which a GPU waits. Padding comes after the text: a causal model
needs no mask, since no token sees what follows it. Its tokens after the end of a text repeat the last one, so that the
last place holds what is classified, and a head needs nothing but the tokens.

Shapes: B texts, N tokens, D width, V words. Inputs are a dict: ids (B, N), mask (B, N), true where there is a token,
and for pairs of sentences types (B, N). transformers is imported where it is used: it takes five seconds.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pipeline.models.encoder import TEXT_HEADS, TEXT_WIDTH, ModelConfig

Texts = Mapping[str, Tensor]
DEPTH, MLP_RATIO, HEAD_STD = 12, 4.0, 0.02  # of transformers


class TextEncoder(nn.Module):
    """What both families have; each adds its modules, the way to the tokens and which of them is classified."""

    default_cfg: ClassVar[dict[str, str]] = {"classifier": "classifier"}  # where timm's models name their head
    classifier: Any

    def __init__(self, cfg: ModelConfig, vocab_size: int, num_classes: int) -> None:
        super().__init__()
        self.embed_dim, self.vocab_size, self.num_classes = cfg.embed_dim or TEXT_WIDTH, vocab_size, num_classes
        self.act_layer = nn.ReLU if cfg.act_layer == "relu" else nn.GELU
        self.head_drop = nn.Dropout(cfg.dropout)
        self.mask_token: int | None = None  # the word that masked language modelling puts instead of others

    def forward_features(self, inputs: Texts) -> Tensor:
        """Tokens (B, N, D) after the last block and, of a GPT-2, the last norm."""
        raise NotImplementedError

    def pool(self, tokens: Tensor) -> Tensor:
        """What is classified (B, D)."""
        raise NotImplementedError

    @property
    def words(self) -> Tensor:
        """(V, D): the embeddings of the words, which language models also use to name words."""
        raise NotImplementedError

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        features = self.head_drop(self.pool(tokens))
        return features if pre_logits else self.classifier(features)

    def forward(self, inputs: Texts) -> Tensor:
        return self.forward_head(self.forward_features(inputs))

    def get_classifier(self) -> nn.Module:
        return self.classifier

    def add_classifier(self, head_std: float | None, bias: bool) -> None:
        self.classifier = nn.Identity()
        if self.num_classes:
            self.classifier = nn.Linear(self.embed_dim, self.num_classes, bias=bias)
            nn.init.normal_(self.classifier.weight, std=head_std or HEAD_STD)
            if bias:
                nn.init.zeros_(self.classifier.bias)


class Bert(TextEncoder):
    """Classifies the pooler of the first token, CLS; an encoder without a classifier has no pooler."""

    def __init__(self, cfg: ModelConfig, vocab_size: int, length: int, num_classes: int) -> None:
        from transformers.models.bert.modeling_bert import BertConfig, BertModel

        super().__init__(cfg, vocab_size, num_classes)
        config: dict[str, Any] = {
            "vocab_size": vocab_size,
            "max_position_embeddings": length,
            "hidden_size": self.embed_dim,
            "num_hidden_layers": cfg.depth or DEPTH,
            "num_attention_heads": cfg.num_heads or TEXT_HEADS,
            "intermediate_size": _hidden(cfg),
            "hidden_act": cfg.act_layer or "gelu",
            "hidden_dropout_prob": cfg.dropout,
            "attention_probs_dropout_prob": cfg.dropout,
            "attn_implementation": "sdpa",
        }
        self.bert: Any = BertModel(BertConfig(**config), add_pooling_layer=num_classes > 0)
        self.add_classifier(cfg.head_std, bias=True)

    @property
    def words(self) -> Tensor:
        return self.bert.embeddings.word_embeddings.weight

    def forward_features(self, inputs: Texts) -> Tensor:
        types = inputs["types"] if "types" in inputs else torch.zeros_like(inputs["ids"])
        tokens = self.bert.embeddings(inputs["ids"], token_type_ids=types)
        mask = inputs["mask"][:, None, None, :]  # whom all heads and all tokens may look at
        for block in self.bert.encoder.layer:
            tokens = block(tokens, mask)
        return tokens

    def pool(self, tokens: Tensor) -> Tensor:
        return self.bert.pooler(tokens)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """For timm's decay of learning rates over layers."""
        blocks = [(r"^bert\.encoder\.layer\.(\d+)", None), (r"^bert\.pooler", (99999,))]
        return {"stem": r"^bert\.embeddings", "blocks": blocks}


class GPT2(TextEncoder):
    """Classifies the last token of a text."""

    def __init__(self, cfg: ModelConfig, vocab_size: int, length: int, num_classes: int) -> None:
        from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2Model

        super().__init__(cfg, vocab_size, num_classes)
        config: dict[str, Any] = {
            "vocab_size": vocab_size,
            "n_positions": length,
            "n_embd": self.embed_dim,
            "n_layer": cfg.depth or DEPTH,
            "n_head": cfg.num_heads or TEXT_HEADS,
            "n_inner": _hidden(cfg),
            "activation_function": cfg.act_layer or "gelu_new",
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), cfg.dropout),
            **dict.fromkeys(("bos_token_id", "eos_token_id")),  # GPT-2's own are no words of a small vocabulary
            "attn_implementation": "sdpa",
        }
        self.transformer: Any = GPT2Model(GPT2Config(**config))
        self.add_classifier(cfg.head_std, bias=False)

    @property
    def words(self) -> Tensor:
        return self.transformer.wte.weight

    def forward_features(self, inputs: Texts) -> Tensor:
        core, ids = self.transformer, inputs["ids"]
        places = torch.arange(ids.shape[1], device=ids.device)
        tokens = core.drop(core.wte(ids) + core.wpe(places))
        for block in core.h:
            tokens = block(tokens)  # without a mask it is causal
        tokens = core.ln_f(tokens)
        seen = torch.minimum(places, inputs["mask"].sum(dim=1, keepdim=True) - 1)
        return tokens.gather(1, seen[:, :, None].expand_as(tokens))

    def pool(self, tokens: Tensor) -> Tensor:
        return tokens[:, -1]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """For timm's decay of learning rates over layers."""
        blocks = [(r"^transformer\.h\.(\d+)", None), (r"^transformer\.ln_f", (99999,))]
        return {"stem": r"^transformer\.w[tp]e", "blocks": blocks}


def build_text_encoder(cfg: ModelConfig, vocab_size: int, length: int, num_classes: int) -> TextEncoder:
    """A model with fresh weights, drawn from torch's global generator; without a classifier for 0 classes."""
    family = Bert if cfg.family == "bert" else GPT2
    return family(cfg, vocab_size, length, num_classes)


def _hidden(cfg: ModelConfig) -> int:
    """Columns inside the MLPs."""
    return int((cfg.embed_dim or TEXT_WIDTH) * (cfg.mlp_ratio or MLP_RATIO))
