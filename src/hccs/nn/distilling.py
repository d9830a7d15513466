"""How far a model's answers are from another's, whatever they are: of labels, of values, of every token."""

from __future__ import annotations

import torch
from torch.nn import functional


def divergence(
    logits: torch.Tensor,
    wanted: torch.Tensor,
    counted: torch.Tensor | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """KL(wanted || logits) of the labels' probabilities, the mean over examples; of values the squared error.

    Of logits per token [batch, n, labels] the mean is over the tokens that `counted` names, or over all.
    With a temperature probabilities are softer, and the result is scaled as gradients need it.

    >>> same = torch.tensor([[0.5, 2.0]])
    >>> divergence(same, same).item(), divergence(torch.tensor([[1.0]]), torch.tensor([[3.0]])).item()
    (0.0, 4.0)
    """
    if counted is not None and logits.ndim == 3:
        logits, wanted = logits[counted], wanted[counted]
    logits, wanted = (part.float().flatten(0, -2) for part in (logits, wanted))
    if logits.shape[-1] == 1:
        return functional.mse_loss(logits, wanted)
    soft = functional.kl_div(
        torch.log_softmax(logits / temperature, -1),
        torch.log_softmax(wanted / temperature, -1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * soft
