"""One module per family, each with CASES; a module that is added here is found by itself."""
