"""What follows the frames of a trial: settings of a trainer, and of its environments."""
