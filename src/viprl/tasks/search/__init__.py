"""Tool-augmented reasoning with search: corpora, retrievers, the protocol, the environment, rewards and scores."""
