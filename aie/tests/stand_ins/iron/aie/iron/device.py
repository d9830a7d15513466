NPU1 = NPU2 = object
