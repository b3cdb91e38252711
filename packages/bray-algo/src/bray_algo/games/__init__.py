"""Rules of small board games, for search and self-play: states in, states out."""

from bray_algo.games.bitboards import CONNECT_FOUR, TIC_TAC_TOE, RowGame
from bray_algo.games.boards import Boards
from bray_algo.games.full_width import action_values, best_actions, open_rows
from bray_algo.games.match import play_match
from bray_algo.games.minimax import minimax, solve
from bray_algo.games.rules import BatchGame, Game, PlanesGame
from bray_algo.games.single_board import ConnectFour, TicTacToe

__all__ = [
    "CONNECT_FOUR",
    "TIC_TAC_TOE",
    "BatchGame",
    "Boards",
    "ConnectFour",
    "Game",
    "PlanesGame",
    "RowGame",
    "TicTacToe",
    "action_values",
    "best_actions",
    "minimax",
    "open_rows",
    "play_match",
    "solve",
]
