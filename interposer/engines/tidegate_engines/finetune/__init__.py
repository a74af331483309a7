"""A trainer that can be stopped and robbed at any instant.

``held``     the memory of what can be made again, and what was lost of it
``cache``    a layer's cache for one token window
``windows``  a causal language model, one layer and one token window at a time
``machine``  forward and backward of a micro-batch in units, and the transaction around a layer
``adapter``  a finished adapter: saved whole, and handed to a running vLLM
"""
