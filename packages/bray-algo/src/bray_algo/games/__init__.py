"""Rules of small board games, for search and self-play: states in, states out."""

from bray_algo.games.boards import Boards
from bray_algo.games.connect_four import ConnectFour
from bray_algo.games.game import Game
from bray_algo.games.minimax import minimax
from bray_algo.games.solution import solve
from bray_algo.games.tic_tac_toe import TicTacToe

__all__ = ["Boards", "ConnectFour", "Game", "TicTacToe", "minimax", "solve"]
