"""Probes of frozen encoders on the small set, and the features that they see."""

import numpy as np
import torch
from small_set import ALONE, config_of

from pipeline.evals.base import EVALS, Subject
from pipeline.evals.probes.features import pooled_layers
from pipeline.evals.probes.heads import LinearHead


def probe_of(world, name, parts=None, **fields):
    return EVALS.get(name)(config_of(name, **fields), {}, world.results, world.site, ALONE, parts)


def compute(world, name, method, parts=None, **fields):
    return probe_of(world, name, parts, **fields).compute(Subject(world.run_of(method), method))


@torch.no_grad()
def features_in(world, method, split, of=pooled_layers):
    """What `of` finds in a split, and labels."""
    count = world.data.count(split)
    (batch,) = probe_of(world, "knn").batches(world.data, split, np.arange(count), count)
    images, labels = batch.images, batch.targets
    return of(method, images), labels.numpy()


def is_new_order_each_time(epochs, images):
    """Every image once in every epoch, and no two epochs alike, nor one in the order of the set."""
    orders = {tuple(images), *map(tuple, epochs)}
    return len(orders) == len(epochs) + 1 and all(sorted(epoch) == list(images) for epoch in epochs)


def plain_gradients(features, labels, weight, bias):
    """Gradients of the mean cross-entropy of standardised features, in numpy."""
    inputs = (features - features.mean(0)) / np.sqrt(features.var(0) + 1e-6)
    logits = inputs @ weight.T + bias
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    loss = -np.log(shares[np.arange(len(labels)), labels]).mean()
    errors = (shares - np.eye(len(bias))[labels]) / len(labels)
    return loss, errors.T @ inputs, errors.sum(0)


def head_in_doubles(width, outputs):
    torch.manual_seed(3)
    head = LinearHead(width, outputs).double()
    return head, head.linear.weight.detach().numpy().copy(), head.linear.bias.detach().numpy().copy()
