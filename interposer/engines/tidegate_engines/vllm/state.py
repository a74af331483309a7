"""The attribute of a scheduler, and of its block pool, that holds what the plugin knows of it."""

STATE = "_tidegate"
