"""Losses and statistics on features that several methods share."""
import torch


def class_means(features: torch.Tensor, labels: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """p^k = mean of the features of class k, and how many there are.

    features `(N, D)`, labels `(N,)` -> means `(C, D)` (zero where a class is absent), counts `(C,)` int64.
    """
    counts = labels.bincount(minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return sums / counts.clamp(min=1)[:, None], counts
