"""A converted model beside other runtimes: latency, throughput, size and memory on the user's own machine."""
