"""Engine plugins: how an unmodified engine lives with memory that may be taken from it.

``job``   what a plugin may ask of Tidegate, and the words it uses
``abi``   the same over the preloaded library, by ctypes
``around``  what stands around an engine's methods
``word``  how many requests are in flight, as an engine says it
``vllm``  the plugin for vLLM
``sglang``  the plugin for SGLang
``finetune``  training in units that can be stopped and done again

A plugin never imports its engine before the engine itself runs it, and does nothing in a process
that the library was not preloaded into.
"""
