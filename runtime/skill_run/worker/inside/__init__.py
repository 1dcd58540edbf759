"""Code that runs only inside a worker's interpreter: torch and Megatron are imported here and nowhere else.

It may use the modules of skill_run that need numpy at most; the tool's own dependencies are not installed in a worker.
"""
