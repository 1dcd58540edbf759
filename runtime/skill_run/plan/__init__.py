"""Planning before a run: lengths and packs, context-parallel traffic against compute, memory per GPU, layouts."""
