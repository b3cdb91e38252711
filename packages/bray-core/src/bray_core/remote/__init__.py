"""Workers on Ray: pools of them, where they are placed, what they may see."""
