"""Several processes that train one ensemble: a mesh of members × data."""
