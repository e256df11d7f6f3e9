"""Results as one HTML file that needs nothing beside it: no script, no font, no network."""
