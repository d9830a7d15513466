SequentialPlacer = object
