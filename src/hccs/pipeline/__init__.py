"""From a float model to a converted one: collect, calibrate, evaluate, retrain, evaluate, save; and the paper's tables."""
