"""Calibrated INT4: text goes through the decoder one layer at a time, and each layer is fitted to what reaches it."""
