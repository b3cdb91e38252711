"""Rules of small board games, for search and self-play: states in, states out."""

from bray_algo.games.batch_game import BatchGame
from bray_algo.games.boards import Boards
from bray_algo.games.connect_four import ConnectFour
from bray_algo.games.full_width import action_values, best_actions, open_rows
from bray_algo.games.game import Game
from bray_algo.games.match import play_match
from bray_algo.games.minimax import minimax
from bray_algo.games.row_game import CONNECT_FOUR, TIC_TAC_TOE, RowGame
from bray_algo.games.solution import solve
from bray_algo.games.tic_tac_toe import TicTacToe

__all__ = [
    "CONNECT_FOUR",
    "TIC_TAC_TOE",
    "BatchGame",
    "Boards",
    "ConnectFour",
    "Game",
    "RowGame",
    "TicTacToe",
    "action_values",
    "best_actions",
    "minimax",
    "open_rows",
    "play_match",
    "solve",
]
