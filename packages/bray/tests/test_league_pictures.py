"""Values to colours, players in the order given, and PNG files that others can read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from bray.games import league_pictures
from bray.games.league_pictures import colours, curve, heat_map, png

PIL = pytest.importorskip("PIL.Image")
MARGIN = league_pictures._MARGIN


def test_colours_go_from_red_over_white_to_blue() -> None:
    red, white, blue = colours(np.array([0.0, 0.5, 1.0])).tolist()
    assert red[0] > 150 > max(red[1:])
    assert white == [247, 247, 247]
    assert blue[2] > 150 > max(blue[:2])
    ramp = colours(np.linspace(0, 1, 101)).astype(int)
    assert (np.abs(np.diff(ramp, axis=0)) < 8).all()  # no jump
    assert colours(np.array([np.nan])).tolist() == [[160] * 3]


def test_the_rows_player_is_on_the_left_the_first_one_on_top() -> None:
    rates = np.array([[0.5, 1.0, 0.5], [0.0, 0.5, 0.5], [0.5, 0.5, 0.5]])
    picture = heat_map(rates, size=30)
    assert picture.shape == (30 + 2 * MARGIN, 30 + 2 * MARGIN, 3)
    cells = picture[MARGIN:-MARGIN, MARGIN:-MARGIN]
    assert (cells[0:10, 10:20] == colours(np.array(1.0))).all()  # player 0 beats player 1: blue
    assert (cells[10:20, 0:10] == colours(np.array(0.0))).all()
    assert (cells[20:] == 247).all()


def test_200_versions_have_whole_pixels() -> None:
    rates = np.random.default_rng(0).random((200, 200))
    cells = heat_map(rates)[MARGIN:-MARGIN, MARGIN:-MARGIN]
    assert cells.shape == (400, 400, 3)
    assert (cells[::2, ::2] == colours(rates)).all()
    assert heat_map(rates, size=10).shape == (200 + 2 * MARGIN, 200 + 2 * MARGIN, 3)


def line_rows(plot: Any) -> Any:
    """The middle row of the dark line in each column."""
    dark = (plot == league_pictures._LINE).all(-1)
    assert dark.any(0).all()  # it has no gap
    return np.array([np.flatnonzero(column).mean() for column in dark.T])


def test_a_curve_rises_to_the_right_within_its_band() -> None:
    middle = np.linspace(1000, 2000, 20)
    picture = curve(middle, middle - 100, middle + 100, width=200, height=120)
    assert picture.shape == (120 + 2 * MARGIN, 200 + 2 * MARGIN, 3)
    plot = picture[MARGIN:-MARGIN, MARGIN:-MARGIN]
    rows = line_rows(plot)
    assert rows[0] == pytest.approx(119 * 1100 / 1200, abs=2)
    assert rows[-1] == pytest.approx(119 * 100 / 1200, abs=2)
    band = (plot == league_pictures._BAND).all(-1)
    for column in (50, 100, 150):
        inside = np.flatnonzero(band[:, column])
        assert rows[column] - inside.min() == pytest.approx(119 * 100 / 1200, abs=2)
        assert inside.max() - rows[column] == pytest.approx(119 * 100 / 1200, abs=2)


def test_curves_of_one_point_or_of_equal_ones_are_drawn() -> None:
    for values in ([1500.0], [1500.0] * 3, [0.0, 0.1]):
        picture = curve(values, values, values, width=60, height=40)
        line_rows(picture[MARGIN:-MARGIN, MARGIN:-MARGIN])


def test_axes_have_round_numbers() -> None:
    assert league_pictures._ticks(0, 199) == [0, 50, 100, 150]
    assert league_pictures._ticks(0, 2) == [0, 1, 2]
    assert league_pictures._ticks(0, 0) == [0]
    assert league_pictures._ticks(1234.5, 1777.7) == [1300, 1400, 1500, 1600, 1700]
    ink = (heat_map(np.full((20, 20), 0.5)) == league_pictures._INK).all(-1)
    assert ink[:MARGIN].any()  # columns are numbered above,
    assert ink[:, :MARGIN].any()  # rows on the left
    assert not ink[MARGIN:-MARGIN, MARGIN:].any()


def test_others_read_the_png() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    with PIL.open(io.BytesIO(png(picture))) as image:
        assert (np.asarray(image) == picture).all()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: heat_map(np.zeros((2, 3))), r"matrix: expected \[N, N\], got shape \(2, 3\)"),
        (lambda: heat_map([[0.5, 2.0], [0.1, 0.5]]), "matrix: expected 0 to 1, got 0.1 to 2.0"),
        (lambda: curve([1, 2], [1], [2, 3]), r"expected \[N\] each, got"),
        (lambda: curve([np.nan], [0], [1]), "expected finite numbers"),
        (lambda: png(np.zeros((2, 2), np.uint8)), r"picture: expected uint8 \[H, W, 3\], got"),
    ],
)
def test_nonsense_is_refused(use: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()
