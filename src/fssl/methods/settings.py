"""Settings that several methods have: what they may be and mean, under a name that a signature can use."""

from typing import Annotated, Literal

from ..config import Range

Threshold = Annotated[float, Range(1e-9, 1.0)]  # a probability that counts from here on
Tau = Annotated[Threshold, "least probability of a label that counts"]
Share = Annotated[float, Range(0.0, 1.0)]
Weight = Annotated[float, Range(0.0, 1e6)]  # of a term in the loss
MuU = Annotated[Weight, "weight of the unlabeled loss"]
Rate = Annotated[float, Range(0.0, 1e6)]  # of learning
StudentRate = Annotated[float, Range(1e-9, 1e6)]  # in learning rates of the model
Vote = Annotated[Literal["hard", "soft"], "the likeliest class, or all probabilities"]
LabelBN = Annotated[Literal["train", "eval"], "label with the batch's statistics, or running ones"]
