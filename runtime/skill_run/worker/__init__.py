"""Worker environments (torch and Megatron): finding, building, checking them, and running tasks in child processes.

Nothing here imports torch or Megatron, except the modules in `inside/`, which only a worker's own interpreter loads.
"""
