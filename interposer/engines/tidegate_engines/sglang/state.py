"""Where a scheduler keeps what the plugin knows of it."""

#: The attribute.
STATE = "_tidegate"
