"""Settings that several methods have: what they may be, under a name that a signature can use."""

from typing import Annotated

from ..config import Range

Threshold = Annotated[float, Range(1e-9, 1.0)]  # a probability that counts from here on
Share = Annotated[float, Range(0.0, 1.0)]
Weight = Annotated[float, Range(0.0, 1e6)]  # of a term in the loss
Rate = Annotated[float, Range(0.0, 1e6)]  # of learning
StudentRate = Annotated[float, Range(1e-9, 1e6)]  # in learning rates of the model
Sharpness = Annotated[float, Range(0.0, 1e9)]  # of SAGE's weights
