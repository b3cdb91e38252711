"""Queues and replay that hand a trainer batches ready to train on."""
