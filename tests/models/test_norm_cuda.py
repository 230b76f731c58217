"""On a Hopper GPU only: the kernels compute the definition, on inputs that are new in every run."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fssl.engines import compiler
from fssl.models import Net, build_net, norm, switch_kernels, switch_tf32_off
from fssl.models.fused import before_relu, conv_relu, definition, fused, fused_stem, stem_definition
from fssl.types import Weights

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not IS_HOPPER, reason="no Hopper GPU")]

EPS = (1e-5, 1e-3)
FEW = 1000  # numbers
SHAPES = [(640, 64, 8, 8), (7, 64, 33, 31), (3, 5, 5, 7), (2, 130, 4, 3), (2, 256, 3, 1), (9, 8, 1, 1)]
Grads = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def _set_up() -> None:
    switch_tf32_off()
    switch_kernels(torch.device("cuda"), True)


def distance(got: Tensor, want: Tensor) -> float:
    """|got - want| / |want|."""
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-30))


def draw(shape: Sequence[int], num_others: int, mean: float = 0.0) -> list[Tensor]:
    """x, weight and bias, and as many tensors of the other summand."""
    torch.seed()
    c = shape[1]

    def norm_of(mean: float) -> list[Tensor]:
        x = torch.randn(*shape, device="cuda") * (torch.rand(c, 1, 1, device="cuda") + 0.5) + mean
        x = x.contiguous(memory_format=torch.channels_last)
        return [x, torch.rand(c, device="cuda") + 0.5, torch.randn(c, device="cuda")]

    return [*norm_of(mean), *norm_of(mean if num_others == 3 else 0.0)][: 3 + num_others]


def away_from_kink(
    dy: Sequence[Tensor], reader: int, tensors: Sequence[Tensor], eps: Sequence[float], margin: float = 1e-5
) -> list[Tensor]:
    """Gradients, with 0 where a value is at ReLU's kink: a single one of a million on its other side is 1e-3 of all."""
    is_away = before_relu([t.double() for t in tensors], eps).abs() > margin
    return [
        d * m for d, m in zip(dy, (is_away, is_away[:, :, ::reader, ::reader] if reader else is_away), strict=False)
    ]


def with_gradients(
    function: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor], dtype: torch.dtype, dy: Sequence[Tensor]
) -> list[Tensor]:
    """What a function gives for the tensors in a precision, and their gradients; weights stay as they are in bf16."""
    given = [t.to(dtype) if t.dim() == 4 or dtype == torch.float64 else t for t in tensors]
    made, pull = torch.func.vjp(function, *given)
    return [*made, *pull(tuple(d.to(dtype) for d in dy))]


def both(
    tensors: list[Tensor], reader: int, dtype: torch.dtype, margin: float = 1e-5
) -> tuple[list[float], list[float]]:
    """Distances from fp64 of the kernels' results and gradients, and of those of the definition."""
    if dtype == torch.bfloat16:
        tensors = [t.to(dtype).float() if t.dim() == 4 else t for t in tensors]
    x = tensors[0]
    dy = [torch.randn_like(x)] + ([torch.randn_like(x[:, :, ::reader, ::reader])] if reader else [])
    dy = away_from_kink([d.to(dtype).float() for d in dy], reader, tensors, EPS, margin)
    exact = with_gradients(lambda *t: definition(t, EPS, reader), tensors, torch.float64, dy)
    by_definition = with_gradients(lambda *t: definition(t, EPS, reader), tensors, dtype, dy)
    by_kernels = with_gradients(lambda *t: fused(EPS, reader, *t)[: len(dy)], tensors, dtype, dy)
    return tuple([distance(g, e) for g, e in zip(each, exact, strict=True)] for each in (by_kernels, by_definition))  # type: ignore[return-value]


@pytest.mark.parametrize("reader", [0, 1, 2])
@pytest.mark.parametrize("num_others", [0, 1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_in_fp32_the_kernels_are_the_definition(shape: tuple[int, ...], num_others: int, reader: int) -> None:
    ours, _ = both(draw(shape, num_others), reader, torch.float32)
    assert max(ours) < 1e-5, ours


@pytest.mark.parametrize("reader", [0, 1, 2])
@pytest.mark.parametrize("num_others", [0, 1, 3])
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_in_bf16_they_are_no_further_from_the_truth(shape: tuple[int, ...], num_others: int, reader: int) -> None:
    ours, plain = both(draw(shape, num_others), reader, torch.bfloat16)
    assert all(a < 1.1 * b + 1e-6 for a, b in zip(ours, plain, strict=True)), (ours, plain)


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_a_large_mean_costs_no_digits(shape: tuple[int, ...]) -> None:
    """A mean of a thousand deviations: its rounding in fp32 is 3e-5 of a deviation, which nothing can mend."""
    tensors = draw(shape, 3, mean=1000.0)
    stats = fused(EPS, 0, *tensors)[2]
    for i, x in enumerate((tensors[0], tensors[3])):
        var, mean = torch.var_mean(x.double(), (0, 2, 3), correction=0)
        torch.testing.assert_close(stats[2 * i].double(), mean, rtol=1e-7, atol=0)
        torch.testing.assert_close(stats[2 * i + 1].double(), var, rtol=1e-5, atol=0)
    ours, plain = both(tensors, 2, torch.float32, margin=1e-3)  # the rounding moves values by 2e-5, some over the kink
    assert all(a < 3 * b + 2e-5 for a, b in zip(ours, plain, strict=True)), (ours, plain)


def test_captured_they_give_the_same_bits_and_never_wait() -> None:
    tensors = [t.bfloat16() if t.dim() == 4 else t for t in draw((64, 64, 16, 16), 3)]
    dy = (torch.randn_like(tensors[0]), torch.randn_like(tensors[0][:, :, ::2, ::2]))

    def step() -> list[Tensor]:
        made, pull = torch.func.vjp(lambda *t: fused(EPS, 2, *t)[:2], *tensors)
        return [*made, *pull(dy)]

    eager = step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for t in captured:
        t.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(eager, again, captured, strict=True))


def test_the_gradient_has_a_gradient() -> None:
    """FedDure's regulator asks for it, also of a compiled step."""
    tensors = draw((4, 8, 5, 5), 3)
    weights = [torch.randn_like(t) for t in tensors]

    def second(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Grads]:
        def value(*tensors: Tensor) -> Tensor:
            return sum(y.square().mean() for y in function(*tensors))  # type: ignore[return-value]

        def pulled(*tensors: Tensor) -> Tensor:
            grads = torch.func.grad(value, argnums=tuple(range(6)))(*tensors)
            return sum((g * w).sum() for g, w in zip(grads, weights, strict=True))  # type: ignore[return-value]

        return torch.func.grad(pulled, argnums=tuple(range(6)))

    def by_kernels(*t: Tensor) -> tuple[Tensor, ...]:
        return fused(EPS, 2, *t)[:2]

    want = second(lambda *t: definition(t, EPS, 2))(*tensors)
    for form in (second(by_kernels), compiler.compiled(second(by_kernels), *tensors)):
        got = form(*tensors)
        assert max(distance(g, w) for g, w in zip(got, want, strict=True)) < 1e-4


Fit = tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]


def fit(net: Net, weights: Weights, x: Tensor, compiled: bool) -> Fit:
    """Logits, gradients and buffers of a step's kind of call."""

    def loss(params: dict[str, Tensor], buffers: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        new, (out,) = net.fit(Weights(params, buffers), x)
        return F.cross_entropy(out.logits, labels), (out.logits, new)

    labels = torch.arange(len(x), device=x.device) % net.classes
    run = torch.func.grad(loss, has_aux=True)
    with torch.no_grad():
        grads, (logits, buffers) = (compiler.compiled(run, *weights) if compiled else run)(*weights)
    return logits, grads, buffers


@pytest.mark.parametrize(("size", "width", "compiled"), [(32, 4, False), (17, 1, False), (32, 4, True)])
def test_training_in_bf16_is_no_further_from_fp32_than_its_plain_form(
    size: int, width: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, gradients and buffers; a mean over some networks where that takes no compiler."""
    torch.seed()
    seeds = torch.randint(1000, (1 if compiled else 8,)).tolist()
    x = torch.randn(160, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)

    def results(bf16: bool) -> list[list[Tensor]]:
        nets = [build_net("resnet8", 3, 10, width, seed=seed, bf16=bf16) for seed in seeds]
        made = [fit(net, on_gpu(net), x, compiled and bf16) for net in nets]
        return [[logits, flat(grads), flat(buffers)] for logits, grads, buffers in made]

    exact, ours = results(False), results(True)
    monkeypatch.setattr(norm, "has_kernels", lambda x: False)
    near, far = mean_distances(ours, exact), mean_distances(results(True), exact)
    assert all(0 < a < 1.1 * b for a, b in zip(near, far, strict=True)), (near, far)


def test_folded_norms_are_no_further_from_fp32_than_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounding of one network's weights may be lucky or not, by a quarter: hence a mean over many."""
    torch.seed()
    x = torch.randn(64, 3, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    nets = [build_net("resnet8", 3, 10, 2, seed=seed, bf16=True) for seed in torch.randint(10**6, (60,)).tolist()]
    learned = [Weights(on_gpu(net).params, fit(net, on_gpu(net), x, False)[2]) for net in nets]

    def answers() -> list[list[Tensor]]:
        return [[net.infer(weights, x).logits] for net, weights in zip(nets, learned, strict=True)]

    ours = answers()
    monkeypatch.setattr(norm, "has_kernels", lambda x: False)
    plain = answers()
    for net in nets:
        net.bf16 = False
    exact = answers()
    (near,), (far,) = mean_distances(ours, exact), mean_distances(plain, exact)
    assert 0 < near < 1.1 * far, (near, far)


def on_gpu(net: Net) -> Weights:
    return Weights(*({k: t.cuda() for k, t in tree.items()} for tree in net.first))


def flat(tree: dict[str, Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tree.values()])


def mean_distances(got: list[list[Tensor]], want: list[list[Tensor]]) -> list[float]:
    """For each kind of result, over networks."""
    each = [[distance(g, w) for g, w in zip(*pair, strict=True)] for pair in zip(got, want, strict=True)]
    return [sum(kind) / len(kind) for kind in zip(*each, strict=True)]


def test_running_statistics_have_a_gradient_too_where_a_method_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels under running statistics may be differentiated: the folded convolution has the plain one's gradient."""
    torch.seed()
    net = build_net("resnet8", 3, 10, 2, bf16=True)
    params = on_gpu(net).params
    x = torch.randn(64, 3, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    _, _, buffers = fit(net, on_gpu(net), x, False)

    def gradient() -> Tensor:
        grads = torch.func.grad(lambda p: net.infer(Weights(p, buffers), x).logits.square().mean())(params)
        return flat(grads)

    ours = gradient()
    monkeypatch.setattr(norm, "has_kernels", lambda x: False)
    plain = gradient()
    net.bf16 = False
    exact = gradient()
    assert distance(ours, exact) < 1.3 * distance(plain, exact), (distance(ours, exact), distance(plain, exact))


STEMS = [
    ((160, 3, 32, 32), 64, 3, 1, 1),
    ((7, 3, 17, 19), 16, 3, 2, 1),
    ((5, 2, 9, 8), 70, 4, 1, 0),
    ((3, 1, 6, 5), 5, 5, 2, 2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reader", [0, 1, 2])
@pytest.mark.parametrize(("shape", "outputs", "size", "stride", "padding"), STEMS)
def test_a_stem_is_the_definition(
    shape: tuple[int, ...], outputs: int, size: int, stride: int, padding: int, reader: int, dtype: torch.dtype
) -> None:
    """Values and gradients by all weights; in fp32 by the images and of the gradient, too; and the frozen form."""
    torch.seed()
    x = torch.randn(*shape, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, shape[1], size, size, device="cuda").to(dtype).float()
    tensors = [weight, torch.rand(outputs, device="cuda") + 0.5, torch.randn(outputs, device="cuda")]
    settings = (1e-5, reader, (stride, stride), (padding, padding))
    dy = [torch.randn_like(y).to(dtype).float() for y in stem_definition((x.float(), *tensors), *settings)]
    z = F.conv2d(x.double(), weight.double(), None, stride, padding)
    dy = away_from_kink(dy, reader, [z, *tensors[1:]], (1e-5,))

    def kernels(*t: Tensor) -> tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = fused_stem(settings, *t)[: len(dy)]
        return made

    def plain(*t: Tensor) -> tuple[Tensor, ...]:
        return stem_definition(t, *settings)

    def everything(function: Callable[..., tuple[Tensor, ...]], x: Tensor, *tensors: Tensor) -> list[Tensor]:
        made, pull = torch.func.vjp(lambda *t: function(x, *t), *tensors)
        given = tuple(d.to(y.dtype) for d, y in zip(dy, made, strict=True))
        results = [*made, *pull(given)]
        if dtype == torch.float32:

            def penalty(*t: Tensor) -> Tensor:
                grads = torch.func.vjp(lambda *t: function(x, *t), *t)[1](given)
                return sum(g.square().mean() for g in grads)  # type: ignore[return-value]

            by_images = torch.func.vjp(function, x, *tensors)[1](given)[0]
            results += [by_images, *torch.func.grad(penalty, (0, 1))(*tensors)]
        return results

    exact = everything(plain, x.double(), *(t.double() for t in tensors))
    ours, theirs = (
        [distance(g, e) for g, e in zip(everything(f, x, *tensors), exact, strict=True)] for f in (kernels, plain)
    )
    first = len(dy) + 3
    # A handful of numbers in bf16 may be rounded well or badly by chance: they get five of its last digits.
    least = [1e-5 if dtype == torch.float32 else 0.02 if e.numel() < FEW else 0.0 for e in exact[:first]]
    limits = [max(at_least, 1.1 * far) for at_least, far in zip(least, theirs, strict=False)]
    assert all(near < limit for near, limit in zip(ours[:first], limits, strict=True)), (ours, theirs)
    assert max([0.0, *ours[first:]]) < 1e-4, ours
    frozen = conv_relu(x, weight.to(dtype), tensors[2], None, *settings[2:])
    want = F.relu(F.conv2d(x.double(), weight.double(), tensors[2].double(), stride, padding))
    assert distance(frozen, want) < (1e-5 if dtype == torch.float32 else 3e-3)
