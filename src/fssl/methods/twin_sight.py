"""Twin-sight (Zhang et al., ICLR 2024): a supervised network and an unsupervised twin that keep the same neighbors."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import ByDataset, Range
from ..label.adaptive import FreeThreshold
from ..label.assign import hard
from ..label.losses import cross_entropies, soft_cross_entropy, supervised_loss
from ..models import CLASSIFIER, Net, Out
from ..seeds import stream
from ..types import (
    Batch,
    Counts,
    Local,
    Payload,
    PseudoLabels,
    Server,
    State,
    Task,
    Trace,
    Weights,
    drop,
    part,
    put,
    rest,
)
from .base import Method, Needs, Recipe, Source, Value, Watched, descend
from .roles import shown_to
from .shared_settings import Share, Weight

TWIN, PROJECT, HEAD = "twin.", "twin.project.", "head."
WIDER, SHORTER = 8, 4  # times a feature's length: the projector's hidden layer and its result

Scale = Literal["released", "mean"]


def contrast(projections: Tensor, temperature: float) -> Tensor:
    """Return SimCLR's loss over 2B projections, one view after the other: each row's other view against all rows."""
    rows, count = F.normalize(projections, dim=-1), len(projections)
    own = torch.eye(count, dtype=torch.bool, device=rows.device)
    scores = torch.where(own, -torch.inf, rows @ rows.T / temperature)
    other = torch.arange(count, device=rows.device).roll(count // 2)
    return cross_entropies(scores, other).mean()


def neighbors(feature_u: Tensor, feature_s: Tensor, scale: Scale) -> Tensor:
    """Return the squared distance of both networks' cosines between the images of a batch."""
    gram_u, gram_s = (f @ f.T for f in (F.normalize(feature_u, dim=-1), F.normalize(feature_s, dim=-1)))
    return (gram_u - gram_s).square().sum() / divisor(len(feature_u), scale)


def divisor(images: int, scale: Scale) -> int:
    """Return B^2; the released code has `B ^ 2`, which is exclusive or in Python (and 0 for two images)."""
    return (images ^ 2 if scale == "released" else 0) or images**2


@dataclass(frozen=True)
class TwinSight(Method):
    """Both networks are uploaded; the supervised one is tested. The twin's tensors have the prefix `twin.`.

    A client with labels trains only on these. One without trains on the contrast of its twin and on neighbors, and
    with `pseudo` also on labels.
    """

    accept: FreeThreshold = FreeThreshold()  # noqa: RUF009 (a frozen value)
    contrast: float = 0.5
    temperature: float = 0.07
    neighbors: float = 1.0
    scale: Scale = "released"
    pseudo: float = 0.0
    swap: bool = True

    @property
    def needs(self) -> Needs:
        return Needs(client_labels=True, all_weights=True)

    def recipe(self, usual: Recipe) -> Recipe:
        """Return the recipe; clients with labels train only on these, independently of `train.labels_alone`."""
        return replace(usual, views=("x", "x_strong", "u_weak", "u_strong"), shuffles=True, labels_alone=False)

    @property
    def watched(self) -> Watched:
        return Watched()

    def init(self, net: Net, weights: Weights, task: Task) -> Server:
        """Return the server with a separately drawn twin."""
        draw, like = stream(task.seed, "twin-sight"), weights.params[CLASSIFIER]
        twin = net.drawn(int(draw.integers(2**31)))
        trees = [{k: t.to(like.device) for k, t in drop(HEAD, tree).items()} for tree in twin]
        trees[0] |= put("project.", projector(like, task.seed))
        return Server(Weights(*({**own, **put(TWIN, other)} for own, other in zip(weights, trees, strict=True))), {})

    def client_state(self, payload: Payload, task: Task, counts: Counts) -> State:
        return self.accept.init(task, counts) if self.pseudo else {}

    def keep(self, local: Local) -> State:
        """Return nothing, since the thresholds' means restart in each round."""
        return {}

    def step(self, net: Net, payload: Payload, local: Local, batch: Batch) -> tuple[Local, Trace]:
        weak, y = shown_to(batch, "u_weak")
        strong, _ = shown_to(batch, "u_strong", "x_strong")

        def loss(weights: Weights, state: State) -> Value:
            model, twin = rest(TWIN, weights), part(TWIN, weights)
            buffers_s, (s_weak, s_strong) = net.fit(model, weak, strong)
            body = Weights({**headless(model.params), **twin.params}, twin.buffers)
            buffers_u, (u_weak, u_strong) = net.fit(body, weak, strong)
            l_s = supervised_loss(s_weak.logits, batch, y)
            rows = projected(torch.cat([u_weak.feature, u_strong.feature]), twin.params)
            l_i = contrast(rows, self.temperature)
            l_n = neighbors(u_weak.feature, s_weak.feature, self.scale)
            l_u, votes, state = self.labeled(s_weak, s_strong, batch, state)
            total = l_s + self.pseudo * l_u + self.contrast * l_i + self.neighbors * l_n
            losses = {name: t.detach() for name, t in (("l_s", l_s), ("l_u", l_u), ("l_i", l_i), ("l_n", l_n))}
            return total, ({**buffers_s, **put(TWIN, buffers_u)}, state, Trace(losses, votes))

        return descend(loss, self.optimizer.at(batch.clock), local)

    def labeled(self, weak: Out, strong: Out, batch: Batch, state: State) -> tuple[Tensor, State, State]:
        """Return L_u without labels, the votes and the state; as released, the strong view labels the weak one."""
        if not self.pseudo:
            return torch.zeros_like(batch.has_labels), {}, state
        by, learns = (strong, weak) if self.swap else (weak, strong)
        p = by.logits.detach().softmax(-1)
        state = {**state, **self.accept.observe(p, state)}
        sure = self.accept.sure(p, state) & (batch.has_labels == 0)
        votes = {"p_l": p, "sure_l": sure, "target": hard(p), "mask": sure}
        return soft_cross_entropy(learns.logits, PseudoLabels(votes["target"], sure)), votes, state

    def deploy(self, net: Net, server: Server) -> Weights:
        return rest(TWIN, server.weights)


def headless(params: State) -> State:
    """Return the last layer of the supervised network; the twin is called with it but does not train it."""
    return {name: t.detach() for name, t in params.items() if name.startswith(HEAD)}


def projector(classifier: Tensor, seed: int) -> State:
    """Return two layers, with PyTorch's initialization of linear layers, and a norm between them."""
    d, draw = classifier.shape[1], stream(seed, "twin-sight projector")
    layers: State = {}
    for name, (rows, columns) in {"0": (WIDER * d, d), "3": (SHORTER * d, WIDER * d)}.items():
        for kind, shape in {"weight": (rows, columns), "bias": (rows,)}.items():
            drawn = draw.uniform(-1, 1, shape) / columns**0.5
            layers[f"{name}.{kind}"] = torch.from_numpy(drawn).to(classifier)
    one = classifier.new_ones(WIDER * d)
    return {**layers, "1.weight": one, "1.bias": torch.zeros_like(one)}


def projected(feature: Tensor, params: State) -> Tensor:
    """Return the result of linear, BatchNorm by the batch, ReLU, linear."""
    w = {name.removeprefix("project."): t for name, t in params.items() if name.startswith("project.")}
    hidden = F.linear(feature, w["0.weight"], w["0.bias"])
    normed = F.batch_norm(hidden, None, None, w["1.weight"], w["1.bias"], training=True)
    return F.linear(F.relu(normed), w["3.weight"], w["3.bias"])


@Source(
    "Zhang et al. 2024",
    "released code",
    note="sends two networks both ways; for federations in which some clients know all labels and the others none",
    label="Twin-sight",
)
def twin_sight(
    contrast: Annotated[Weight, "weight of the twin's contrast"] = 0.5,
    temperature: Annotated[float, Range(1e-3, 1e3), "of the contrast"] = 0.07,
    neighbors: Annotated[Weight, "weight of the distance between both networks' neighborhoods"] = 1.0,
    scale: Annotated[Scale, "divisor of that distance: B xor 2, as released, or B squared"] = "released",
    pseudo: Annotated[Weight, "weight of pseudo-labels at clients without labels; 0: none"] = 0.0,
    swap: Annotated[bool, "label the weak view by the strong one, as released"] = True,
    lowest: Annotated[Share, ByDataset(lambda card: 0.9 if card.name == "svhn" else 0.0), "lowest threshold"] = 0.0,
    highest: Annotated[Share, ByDataset(lambda card: 0.95 if card.name == "svhn" else 1.0), "highest threshold"] = 1.0,
) -> TwinSight:
    """A supervised network and an unsupervised twin learn to have the same neighbors; the first one is tested."""
    return TwinSight(
        accept=FreeThreshold(lowest=lowest, highest=highest),
        contrast=contrast,
        temperature=temperature,
        neighbors=neighbors,
        scale=scale,
        pseudo=pseudo,
        swap=swap,
    )
