"""A trainer that can be stopped and robbed at any instant.

``boot``     what Python runs at its start: waits for a script that prepares a model
``trainer``  a model that is about to be trained: by units where that can be; ``trainer.step`` for a loop of one's own
``plain``    whole micro-batches as units, for any model
``why_not``  which models can, and why the others cannot
``seam``     where a model's own forward and backward turn into units
``machine``  forward and backward of its layers in units, and the transaction around a layer
``windows``  the layers, one layer and one token window at a time
``cache``    a layer's cache for one token window
``held``     the memory of what can be made again, and what was lost of it
``said``     what a trainer says of itself to the agent
``pieces``   which of it lies in which blocks of a memory that the agent takes and gives back
``taken``    such a memory whose content tensors of the host show
``arena``    such a memory in which tensors lie themselves
``virtual``  the virtual GPU as a trainer's device, by ``taken``
``cuda``     a real GPU, by ``arena``
``driver``   what both ask of the driver themselves
``asked``    what a user asks of `tidegate finetune`, and what is wrong with it
``cli``      that training
``adapter``  a finished adapter: saved whole, and handed to a running vLLM
"""
