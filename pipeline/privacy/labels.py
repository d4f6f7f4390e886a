"""Labels that gradients give away.

The gradient of the classifier's bias is the mean over images of probabilities less the one-hot label. Of one image it
is negative at the label alone (Zhao et al. 2020, iDLG). Of k images the k most negative entries are taken. That assumes
that their classes are distinct, and it can still be wrong: an image that the model is sure of leaves a small entry.
"""

from torch import Tensor

from pipeline.core.errors import ConfigError
from pipeline.privacy.client import Gradients

BIAS = "encoder.head.bias"


def recover_labels(gradients: Gradients, k: int) -> Tensor:
    """(G, k) labels of the k images of each group, in ascending order: gradients do not tell which image is first."""
    if BIAS not in gradients:
        raise ConfigError(f"labels are recovered from the gradient of {BIAS}, which is not sent; set labels to known")
    bias = gradients[BIAS]
    if k > bias.shape[1]:
        raise ConfigError(
            f"labels of {k} images cannot be distinct among {bias.shape[1]} classes; set labels to known, or use a "
            "smaller batch"
        )
    return bias.topk(k, dim=1, largest=False).indices.sort(dim=1).values
