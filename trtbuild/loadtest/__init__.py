"""A load generator for a served model: requests at their own times, latencies from when each was due."""
