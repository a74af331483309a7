"""Training that rides in vLLM's own steps, on its own copy of the weights.

``decoder``   one layer as a function over vLLM's own parameters, with an adapter in any of its seven matrices
``head``      last norm, output matrix, loss and what it gives back to the last layer, in chunks of rows
``units``     the backward pass of a sample, one layer of one window at a time
``seam``      what vLLM's runner leaves of a sample: the input of each layer, keys and values in the paged cache
``adapters``  the trained matrices, their optimizer, the slot and the directory that they are published to
``riding``    a sample as vLLM's own request, and the key of an adapter in the prefix cache
``why_not``   which engines train nothing, in words for their logs
``room``      memory that is set aside before vLLM sizes its cache

``live``      has vLLM's engine core do it (``TIDEGATE_TUNE``, in ``promised``)
``service``   the socket, with its ``messages``, and ``texts`` as tokens
``trainer``   between two steps: which job, which unit, of how many rows; the library says
``job``       an adapter and the calls that wait for it; ``work`` is what a call has the engine do, in units
``losses``    what a loss is, and what it gives back
``engine``    the engine core as training sees it
``served``    trained adapters in vLLM's front end, by their names

A sample's forward pass is vLLM's: its rows are in the same passes as users' rows. What a pass leaves is the input of
every layer (``X``), and keys and values in the cache. The backward pass computes each layer again from its ``X``, one
window of rows at a time, with the same parameters, by address.

Nothing here decides how many rows ride in a step, how long a window is or when a unit runs: it is told.
"""
