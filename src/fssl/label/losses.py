"""Losses and what they are made of: tensors in, a scalar or a value per image out."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import Batch, PseudoLabels, State


def supervised_loss(logits: Tensor, batch: Batch, y: Tensor | None = None) -> Tensor:
    """Return L_s of a step, with the run's class weights or prior; 0 for a client without labels.

    Args:
        logits: Of the labeled images, with gradients.
        batch: The step's batch.
        y: The images' classes, where they are not shown once each in the batch's order.
    """
    return batch.has_labels * cross_entropy(adjusted(logits, batch), batch.y if y is None else y, batch.class_weights)


def adjusted(logits: Tensor, batch: Batch) -> Tensor:
    """Return z + tau log pi of labeled images, with `train.logit_adjustment`; 1 is the balanced softmax."""
    return logits if batch.log_prior is None else logits + batch.log_prior


def cross_entropy(logits: Tensor, y: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Return the mean over the batch of w_y CE(logits, y).

    It is divided by the number of images, not by the sum of their weights: a batch of rare images counts for more.
    """
    if class_weights is None:
        return F.cross_entropy(logits, y)
    return F.cross_entropy(logits, y, class_weights, reduction="sum") / len(y)


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each image [B], with one class each."""
    return F.cross_entropy(logits, y, reduction="none")


def masked_mean(per_image: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the images that count; 0 if none does."""
    return (per_image * mask).sum() / mask.sum().clamp(min=1)


def entropy(p: Tensor) -> Tensor:
    """Return the entropy of each image [B], in nats; 0 log 0 is 0."""
    out: Tensor = torch.special.entr(p).sum(-1)
    return out


def image_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return -sum_c target_c log p_c of each image [B]."""
    return -(target * F.log_softmax(logits, -1)).sum(-1)


def guarded_cross_entropy(logits: Tensor, target: Tensor, guard: float) -> Tensor:
    """Return -sum_c target_c log(p_c + guard) of each image [B].

    The gradient is that without a guard times p / (p + guard) where the target is one class, so it fades where the
    model gives that class less than the guard.
    """
    return -(target * (logits.softmax(-1) + guard).log()).sum(-1)


def soft_cross_entropy(logits: Tensor, labels: PseudoLabels, guard: float = 0.0) -> Tensor:
    """Return L_u: masked, but divided by the whole batch, as FixMatch and the released code do.

    Same gradient as the released KL(y_hat || p), whose extra entropy is a constant; the paper prints
    KL(p || y_hat), which is infinite for a one-hot target. The released code guards its logarithm.
    """
    per_image = (
        guarded_cross_entropy(logits, labels.target, guard) if guard else image_cross_entropy(logits, labels.target)
    )
    return (per_image * labels.mask).mean()


def kl_divergence(p: Tensor, logits: Tensor) -> Tensor:
    """Return KL(p || softmax(logits)) of each image [B]; 0 log 0 is 0."""
    return (torch.xlogy(p, p) - p * F.log_softmax(logits, -1)).sum(-1)


def squared_distance(params: State, reference: State) -> Tensor:
    """Return ||theta - theta_g||^2 over parameters, not buffers."""
    return torch.stack([(p - reference[name]).square().sum() for name, p in params.items()]).sum()
