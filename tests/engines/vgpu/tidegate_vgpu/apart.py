"""An executor whose workers Tidegate's plugin does not see being started, as those of Ray are not.

vLLM's executor for Ray is made of its executor for processes (`mp`), has `_init_executor` of its own, and its actors
inherit nothing that is put into the environment afterwards. Here the workers are started as `mp` starts them.
"""

import inspect

from vllm.v1.executor.multiproc_executor import MultiprocExecutor


class Apart(MultiprocExecutor):
    def _init_executor(self):
        inspect.unwrap(MultiprocExecutor._init_executor)(self)
