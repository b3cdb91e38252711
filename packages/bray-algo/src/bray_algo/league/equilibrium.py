"""Equilibria of two-player zero-sum games given as a matrix, such as a payoff table's.

`payoff [M, N]` is what the row player wins and the column player loses. From win rates take
`2 * table.matrix() - 1`: a win is 1, a draw 0, a loss −1, and the matrix is antisymmetric.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bray_algo.league.intervals import Floats
from bray_algo.validation.scalars import check_count


class Equilibrium(NamedTuple):
    """Mixtures that neither side gains by leaving."""

    row: Floats
    """Probability of each row, `[M]`."""
    column: Floats
    """Probability of each column, `[N]`."""
    value: float
    """What the row player wins on average."""


def nash(payoff: npt.ArrayLike) -> Equilibrium:
    """Return a Nash equilibrium, exact up to rounding, by linear programming.

    The column player's programme with positive payoffs A: maximise Σ y, A y ≤ 1, y ≥ 0 (Dantzig
    1951, "A proof of the equivalence of the programming problem and the game problem"), by the
    simplex method on a dense tableau; the row player's mixture is its dual. A payoff of 200 × 200
    takes less than a second. Where there are many equilibria it is one of them, at a vertex.

    Raises:
        ValueError: not a finite `[M, N]`.
    """
    payoff = _matrix(payoff)
    rows, columns = payoff.shape
    low, scale = payoff.min(), max(float(np.ptp(payoff)), 1e-12)
    tableau = np.zeros((rows + 1, columns + rows + 1))
    # Payoffs from 1 to 2: the programme needs a positive value, and scale does not change mixtures.
    tableau[:rows, :columns] = (payoff - low) / scale + 1
    tableau[:rows, columns:-1] = np.eye(rows)
    tableau[:rows, -1] = 1
    tableau[-1, :columns] = -1
    basis = _simplex(tableau, np.arange(columns, columns + rows))
    solution = np.zeros(columns + rows)
    solution[basis] = tableau[:rows, -1]
    row, column = tableau[-1, columns:-1].clip(min=0), solution[:columns].clip(min=0)
    # The programme's variables are the mixture over the value: scaling makes them probabilities.
    row, column = row / row.sum(), column / column.sum()
    return Equilibrium(row, column, float(row @ payoff @ column))


def fictitious_play(payoff: npt.ArrayLike, num_steps: int = 10_000) -> Equilibrium:
    """Return the average play of two who each answer the other's average so far.

    Brown 1951, "Iterative solution of games by fictitious play". It converges (Robinson 1951), the
    exploitability about as 1/√steps. One step costs M + N: good for matrices too large for `nash`.

    Args:
        payoff: What the row player wins, `[M, N]`.
        num_steps: Number of steps; a hundred times as many bring about a tenth of the distance from
            an equilibrium.

    Raises:
        ValueError: not a finite `[M, N]`, or no step.
    """
    payoff = _matrix(payoff)
    check_count("num_steps", num_steps)
    row, column = np.zeros(payoff.shape[0]), np.zeros(payoff.shape[1])
    against_column, against_row = np.zeros(len(row)), np.zeros(len(column))
    for _ in range(num_steps):
        best, answer = int(against_column.argmax()), int(against_row.argmin())
        row[best] += 1
        column[answer] += 1
        against_row += payoff[best]
        against_column += payoff[:, answer]
    row, column = row / num_steps, column / num_steps
    return Equilibrium(row, column, float(row @ payoff @ column))


def exploitability(
    payoff: npt.ArrayLike, row: npt.ArrayLike, column: npt.ArrayLike | None = None
) -> float:
    """Return what the two gain together by answering each other best: 0 at an equilibrium.

    max_i (A y)_i − min_j (xᵀ A)_j, also called NashConv (Lanctot et al. 2017, "A unified
    game-theoretic approach to multiagent reinforcement learning", §2). With one mixture of an
    antisymmetric game, what an opponent wins by answering it: −min_j (xᵀ A)_j.

    Args:
        payoff: What the row player wins, `[M, N]`.
        row: Probabilities of the row player's actions, `[M]`.
        column: Probabilities of the column player's actions, `[N]`; None: both play `row`, and each
            half is counted once. The game is to be antisymmetric then.

    Raises:
        ValueError: shapes do not agree, a mixture is not one of probabilities, or the game is not
            antisymmetric.
    """
    payoff = _matrix(payoff)
    x = _mixture("row", row, payoff.shape[0])
    if column is None:
        if payoff.shape[0] != payoff.shape[1] or not np.allclose(payoff, -payoff.T):
            raise ValueError("payoff: expected antisymmetric [N, N] without a column mixture")
        return float(-(x @ payoff).min())
    y = _mixture("column", column, payoff.shape[1])
    return float((payoff @ y).max() - (x @ payoff).min())


def symmetrised(payoff: npt.ArrayLike) -> Floats:
    """Return the symmetric game in which both draw lots for the sides of a game `[M, N]`.

    A strategy of it is a row and a column, i · N + j: what it plays on either side. The result
    `[M N, M N]` is antisymmetric, as leagues and self-play need it, with the value 0; an
    equilibrium of it plays one of the game on each side (Gale, Kuhn and Tucker 1950, "On symmetric
    games").

    Raises:
        ValueError: not a finite `[M, N]`.
    """
    payoff = _matrix(payoff)
    rows, columns = (index.ravel() for index in np.indices(payoff.shape))
    as_row = payoff[rows[:, None], columns]  # mine as row against the other's column
    return (as_row - as_row.T) / 2


def _simplex(tableau: Floats, basis: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Pivot in place until no cost is negative, and return the basis.

    The steepest cost enters; after many pivots Bland's rule, which cannot cycle.
    """
    patience = 20 * len(tableau)
    for pivots in range(200 * len(tableau)):
        costs = tableau[-1, :-1]
        negative = np.flatnonzero(costs < -1e-11)
        if not len(negative):
            break
        enter = int(negative[0] if pivots > patience else costs.argmin())
        leave = _leaving(tableau, basis, enter)
        tableau[leave] /= tableau[leave, enter]
        others = tableau[:, enter].copy()
        others[leave] = 0
        tableau -= np.outer(others, tableau[leave])
        basis[leave] = enter
    return basis


def _leaving(tableau: Floats, basis: npt.NDArray[np.int64], enter: int) -> int:
    """Return the row whose variable reaches zero first; among equals the one of the least index."""
    column, bound = tableau[:-1, enter], tableau[:-1, -1]
    ratio = np.full(len(column), np.inf)
    np.divide(bound, column, out=ratio, where=column > 1e-11)
    ties = np.flatnonzero(ratio <= ratio.min() + 1e-14)
    return int(ties[basis[ties].argmin()])


def _matrix(payoff: npt.ArrayLike) -> Floats:
    matrix = np.asarray(payoff, np.float64)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise ValueError(f"payoff: expected finite [M, N], got shape {matrix.shape}")
    return matrix


def _mixture(name: str, mixture: npt.ArrayLike, size: int) -> Floats:
    array = np.asarray(mixture, np.float64)
    if array.shape != (size,) or not (array >= -1e-9).all() or abs(array.sum() - 1) > 1e-6:
        raise ValueError(f"{name}: expected [{size}] of probabilities, got {mixture!r}")
    return array
