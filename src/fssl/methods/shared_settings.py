"""Settings that several methods have: their range and meaning, under a name for signatures."""

from typing import Annotated, Literal

from ..config import Range

Threshold = Annotated[float, Range(1e-9, 1.0)]  # a probability, counted from this value on
Tau = Annotated[Threshold, "least probability of a label that counts"]
Share = Annotated[float, Range(0.0, 1.0)]
Ema = Annotated[Share, "decay of the running means per step"]
Weight = Annotated[float, Range(0.0, 1e6)]  # of a term in the loss
MuU = Annotated[Weight, "weight of the unlabeled loss"]
MuProx = Annotated[Weight, "weight of the pull towards the broadcast model"]
RateFactor = Annotated[float, Range(0.0, 1e6)]  # of learning
RelativeRate = Annotated[float, Range(1e-9, 1e6)]
StudentRate = Annotated[RelativeRate, "learning rate of the student, as a multiple of the model's"]
UnlabeledRate = Annotated[RelativeRate, "learning rate of clients without labels, as a multiple of train.lr"]
WinnerBy = Annotated[
    Literal["variance", "entropy", "max"],
    "the model that labels an image: larger variance or maximum of its probabilities, or smaller entropy",
]
VoteChoice = Annotated[Literal["hard", "soft"], "the likeliest class, or all probabilities"]
LabelBN = Annotated[Literal["train", "eval"], "label with the batch's statistics, or running ones"]
Steps = Annotated[
    Literal["pool", "labeled"], "as many steps as the semi-supervised methods take, or epochs over the labeled images"
]
Sign = Annotated[
    Literal["released", "expected"],
    "released: the model follows l_1 - l_0, so an improving student pushes away; expected: l_0 - l_1",
]
Passes = Annotated[
    Literal["joint", "separate"], "joint: all views in one batch; separate: each with BatchNorm statistics of its own"
]
