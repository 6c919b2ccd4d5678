"""Compare Adam on binary data with the best exact loss that long runs find; on a GPU, with PyTorch.

The data have the shape of Chicago's crimes: 366 million cells, of which about 5.3 million are one,
drawn from a planted model of odds. The exact loss, over all cells, and its gradient go into
L-BFGS, whose variables are the logarithms of the factors; it starts from the planted model, from
random models and from what Adam has found.

    python tests/gpu/bernoulli_optimum.py --epochs 25 --starts 3
"""

import argparse
import time

import cupy
import numpy as np
import torch

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.decomposition import generalized_parafac

SHAPE, RANK, NUM_ONES = (6186, 24, 77, 32), 8, 5_300_000

#: Rows of the first mode whose cells are in memory at a time.
BLOCK = 206

CUDA = {"device": "cuda", "dtype": torch.float64}


def multiply_rows(factors):
    """Return the Khatri-Rao product of all factors but the first."""
    second, third, fourth = factors[1:]
    return torch.einsum("jr,kr,lr->jklr", second, third, fourth).reshape(-1, second.shape[1])


def draw(seed):
    """Draw a planted model, scaled to give NUM_ONES ones on average, and the ones."""
    rng = np.random.default_rng(seed)
    factors = [torch.tensor(rng.gamma(0.5, size=(n, RANK)) + 0.01, **CUDA) for n in SHAPE]
    low, high = -40.0, 40.0
    for _ in range(40):
        middle = (low + high) / 2
        scaled = [factors[0] * np.exp(middle), *factors[1:]]
        columns = multiply_rows(scaled)
        blocks = (scaled[0][n : n + BLOCK] @ columns.T for n in range(0, SHAPE[0], BLOCK))
        count = sum(float((odds / (1 + odds)).sum()) for odds in blocks)
        low, high = (middle, high) if count < NUM_ONES else (low, middle)
    factors[0] *= np.exp(middle)
    columns, ones = multiply_rows(factors), []
    torch.manual_seed(seed)
    for first in range(0, SHAPE[0], BLOCK):
        odds = factors[0][first : first + BLOCK] @ columns.T
        is_one = torch.rand(odds.shape, **CUDA) < odds / (1 + odds)
        ones.append((torch.nonzero(is_one) + torch.tensor([first, 0], device="cuda")).T)
    rows, cells = torch.cat(ones, dim=1)
    others = torch.unravel_index(cells, SHAPE[1:])
    return factors, torch.stack([rows, *others])


def measure(factors, ones):
    """Return the exact loss, ``sum(log(1 + m)) - sum(log(m) at the ones)``, and its gradients."""
    columns = multiply_rows(factors)
    loss, first_gradient, column_gradient = 0.0, [], torch.zeros_like(columns)
    for first in range(0, SHAPE[0], BLOCK):
        block = factors[0][first : first + BLOCK]
        odds = block @ columns.T
        loss += torch.log1p(odds).sum()
        slopes = 1 / (1 + odds)
        first_gradient.append(slopes @ columns)
        column_gradient += slopes.T @ block
    second, third, fourth = factors[1:]
    cube = column_gradient.reshape(*SHAPE[1:], -1)
    gradients = [
        torch.cat(first_gradient),
        torch.einsum("jklr,kr,lr->jr", cube, third, fourth),
        torch.einsum("jklr,jr,lr->kr", cube, second, fourth),
        torch.einsum("jklr,jr,kr->lr", cube, second, third),
    ]
    rows = [factor[places] for factor, places in zip(factors, ones, strict=True)]
    product = rows[0] * rows[1] * rows[2] * rows[3]
    odds = product.sum(dim=1)
    loss -= torch.log(odds).sum()
    for gradient, own, places in zip(gradients, rows, ones, strict=True):
        gradient.index_add_(0, places, -product / own / odds[:, None])
    return loss, gradients


def descend(factors, ones, num_iterations):
    """Lower the exact loss by L-BFGS; return it."""
    logs = [torch.log(factor.clamp_min(1e-12)).requires_grad_() for factor in factors]
    options = {"max_iter": num_iterations, "history_size": 20, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS(logs, tolerance_grad=1e-3, tolerance_change=1e-9, **options)

    def evaluate():
        with torch.no_grad():
            loss, gradients = measure([torch.exp(log) for log in logs], ones)
            for log, gradient in zip(logs, gradients, strict=True):
                log.grad = (gradient * torch.exp(log)).contiguous()
        return loss

    optimizer.step(evaluate)
    return float(evaluate())


def run_adam(ones, num_epochs):
    """Print the seconds and the exact loss of some epochs of `generalized_parafac`."""
    coords = cupy.from_dlpack(ones)
    x = FlycooTensor(coords, cupy.ones(coords.shape[1]), SHAPE)
    start, models = time.perf_counter(), []

    def note(cp_tensor, loss):
        models.append((time.perf_counter() - start, list(cp_tensor.factors)))

    generalized_parafac(
        x, RANK, num_epochs, loss="bernoulli_odds", random_state=0, tol=0, callback=note
    )
    for epoch, (seconds, factors) in enumerate(models):
        if epoch in (1, 2, 5, 10, 15, 20, len(models) - 1):
            found = [torch.from_dlpack(factor) for factor in factors]
            loss = float(measure(found, ones)[0])
            print(f"Adam, call {epoch}: {seconds:.1f} s, {loss:,.0f}", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=500)
    options = parser.parse_args()
    planted, ones = draw(0)
    print(f"{ones.shape[1]:,} ones; the planted model: {float(measure(planted, ones)[0]):,.0f}")
    found = run_adam(ones, options.epochs)
    starts = {"the planted model": planted, "Adam's": found}
    scale = (NUM_ONES / np.prod(SHAPE, dtype=float) / RANK) ** (1 / len(SHAPE))
    for seed in range(options.starts):
        rng = np.random.default_rng(seed)
        drawn = [torch.tensor(2 * scale * rng.random((n, RANK)), **CUDA) for n in SHAPE]
        starts[f"random start {seed}"] = drawn
    for name, factors in starts.items():
        start = time.perf_counter()
        loss = descend(factors, ones, options.iterations)
        print(f"L-BFGS from {name}: {loss:,.0f} after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
