"""Integer programs as WebAssembly: the C of `hccs.executors.c` over packed weights, and JavaScript."""
