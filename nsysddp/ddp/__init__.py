"""DistributedDataParallel itself: a model of its Reducer, and marks for training loops."""
